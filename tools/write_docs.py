"""Writes the tables of the documents that the code knows best: settings, metrics, measurements.

python tools/write_docs.py          writes them
python tools/write_docs.py --check  fails where they are not what it writes
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.bulk import table as bulk
from benchmarks.calibration import scores
from benchmarks.experiments import budgets, papers, tables
from benchmarks.markdown import table
from benchmarks.ranks import scaling
from benchmarks.store import stored_results
from kernels.instructions import report as instructions
from service.environment import setting_rows
from service.metrics import Metrics
from tests.service.clients.client_table import client_rows
from tests.service.dialects.vendor_table import vendor_rows

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def settings_table() -> str:
    rows = ([f"`{row.variable}`", f"`{row.default}`", row.description] for row in setting_rows())
    return table(("variable", "default", "meaning"), rows)


def metrics_table() -> str:
    metrics = Metrics()
    suffixes = {"counter": "_total"}
    rows = (
        [
            f"`{family.name}{suffixes.get(family.type, '')}`",
            family.type,
            ", ".join(f"`{label}`" for label in metrics.labels[family.name]),
            family.documentation,
        ]
        for family in sorted(metrics.registry.collect(), key=lambda one: one.name)
        if family.name in metrics.labels
    )
    return table(("metric", "type", "labels", "meaning"), rows)


def results_tables() -> str:
    return stored_results(RESULTS)


def calibration_table() -> str:
    again = scores.read_raw(RESULTS / "calibration-again.jsonl")
    return _calibrated(scores.without(scores.read_raw(RESULTS / "calibration.jsonl"), again))


def calibration_again_table() -> str:
    return _calibrated(scores.read_raw(RESULTS / "calibration-again.jsonl"))


def calibration_kinds_table() -> str:
    return _calibrated(scores.read_raw(RESULTS / "calibration-kinds.jsonl"))


def _calibrated(raw: list[dict[str, Any]]) -> str:
    parts = [scores.measured_on(raw), table(scores.HEAD, scores.table_rows(raw))]
    if exact := list(scores.exact_rows(raw)):
        parts += ["Values without an error:", table(scores.EXACT_HEAD, exact)]
    return "\n\n".join(parts)


def experiments_headline() -> str:
    return papers.headline(RESULTS / "experiments")


def experiments_tables() -> str:
    return tables.tables(RESULTS / "experiments")


def experiments_papers() -> str:
    return table(papers.HEAD, papers.rows(RESULTS))


def experiments_budgets() -> str:
    return table(budgets.HEAD, budgets.rows(RESULTS / "experiments"))


def clients_table() -> str:
    head = ("client", "package and version", "use", "what the tests check", "tested by")
    return table(head, client_rows())


def vendors_table() -> str:
    head = (
        *("vendor", "routes", "package and version", "the line that changes"),
        *("what the tests check", "refused, and why"),
    )
    return table(head, vendor_rows())


def bulk_table() -> str:
    results = bulk.read_results(RESULTS)
    return f"{table(bulk.HEAD, bulk.rows(results))}\n\n{bulk.measured_on(results)}"


def scaling_exchanges() -> str:
    content = scaling.read_exchanges(RESULTS)
    measured = table(scaling.EXCHANGE_HEAD, scaling.exchange_rows(content))
    return f"{measured}\n\n{scaling.fit_sentence(content)}"


def scaling_plan() -> str:
    content = scaling.read_exchanges(RESULTS)
    return "\n\n".join(
        (
            table(scaling.ASSUMED_HEAD, scaling.assumed_rows(content)),
            "One document:",
            table(scaling.DOCUMENT_HEAD, scaling.document_rows(content)),
            "A corpus of 10^9 documents:",
            table(scaling.CORPUS_HEAD, scaling.corpus_rows(content)),
        )
    )


def scaling_schedule() -> str:
    return table(scaling.SCHEDULE_HEAD, scaling.schedule_rows(RESULTS))


PAGES: Mapping[Path, Mapping[str, Callable[[], str]]] = {
    ROOT / "docs" / "clients.md": {"clients": clients_table, "vendors": vendors_table},
    ROOT / "docs" / "experiments.md": {
        "headline": experiments_headline,
        "experiments": experiments_tables,
        "papers": experiments_papers,
        "budgets": experiments_budgets,
    },
    ROOT / "docs" / "instruments.md": {
        "calibration": calibration_table,
        "calibration-again": calibration_again_table,
        "calibration-kinds": calibration_kinds_table,
    },
    ROOT / "docs" / "operations.md": {"settings": settings_table, "metrics": metrics_table},
    ROOT / "docs" / "search.md": {"bulk": bulk_table},
    ROOT / "docs" / "scaling.md": {
        "exchanges": scaling_exchanges,
        "plan": scaling_plan,
        "schedule": scaling_schedule,
    },
    ROOT / "benchmarks" / "README.md": {"results": results_tables},
    ROOT / "kernels" / "README.md": {
        "operations": instructions.operations_table,
        "launches": instructions.launches_table,
    },
}


def rendered(path: Path) -> str:
    page = path.read_text(encoding="utf-8")
    for name, write in PAGES[path].items():
        mark = f"<!-- {name}: written by tools/write_docs.py -->"
        between = re.compile(rf"{re.escape(mark)}\n.*?<!-- end -->", re.DOTALL)
        if not between.search(page):
            sys.exit(f"{path} has no place for the table of {name}")
        start, end = between.split(page)
        page = f"{start}{mark}\n{write()}\n<!-- end -->{end}"
    return page


def main() -> None:
    for path in PAGES:
        page = rendered(path)
        if "--check" not in sys.argv[1:]:
            path.write_text(page, encoding="utf-8")
        elif page != path.read_text(encoding="utf-8"):
            sys.exit(f"{path} is out of date: run 'python tools/write_docs.py'")


if __name__ == "__main__":
    main()
