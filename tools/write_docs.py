"""Writes the tables of the documents that the code knows best: settings, metrics, measurements.

python tools/write_docs.py          writes them
python tools/write_docs.py --check  fails where they are not what it writes
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import scaling
from benchmarks.calibration import scores
from benchmarks.store import stored_results
from engine.experiments.intervals import over_seeds
from engine.experiments.trials import read_trials
from service.metrics import Metrics
from service.settings import setting_rows
from tests.service.client_table import client_rows
from tests.service.dialects.vendor_table import vendor_rows

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(_cell(text) for text in line)} |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


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


def _calibrated(raw: list[dict[str, Any]]) -> str:
    inexact = table(scores.HEAD, scores.table_rows(raw))
    exact = table(scores.EXACT_HEAD, scores.exact_rows(raw))
    return f"{scores.measured_on(raw)}\n\n{inexact}\n\nValues without an error:\n\n{exact}"


def experiments_tables() -> str:
    """A table for each stored experiment, best methods first."""
    tables = []
    for path in sorted((RESULTS / "experiments").glob("*/result.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        seeds, named = len(result["settings"]["seeds"]), path.parent.name
        link = f"../benchmarks/results/experiments/{named}"
        rows = sorted(
            result["methods"].items(), key=lambda one: -one[1]["figures"]["score"]["mean"]
        )
        if "accuracy" in rows[0][1]["figures"]:
            shown = _accuracies(result, rows)
        else:
            shown = _steps_to_target(result, rows, path.parent)
        tables.append(f"**{named}**, {seeds} seeds ([stored]({link})):\n\n{shown}")
    return "\n\n".join(tables)


def _accuracies(result: Mapping[str, Any], rows: Iterable[tuple[str, Mapping[str, Any]]]) -> str:
    head = (
        *("attention", "learning rate", "accuracy"),
        *(f"minus {result['reference']}", *_ranges(result)),
    )
    return table(head, (_experiment_row(name, method, _ranges(result)) for name, method in rows))


def _steps_to_target(
    result: Mapping[str, Any], rows: Iterable[tuple[str, Mapping[str, Any]]], folder: Path
) -> str:
    """Of optimisers. Steps and seconds are of trials that reached the target, if all did."""
    seconds: dict[str, list[float]] = {}
    for trial, measured in read_trials(folder):
        if trial.part == "test":
            seconds.setdefault(trial.method, []).append(measured.seconds)
    head = (
        *("optimiser", "rate", "reached", "steps"),
        *(f"minus {result['reference']}", "CPU seconds", "lowest loss, of the first"),
    )
    return table(head, (_optimiser_row(name, method, seconds[name]) for name, method in rows))


def _optimiser_row(
    name: str, method: Mapping[str, Any], seconds: Sequence[float]
) -> tuple[str, ...]:
    reached = [bool(one["reached"]) for one in method["by_seed"]]
    figures, edge = method["figures"], " (edge of the sweep)" if method["is_edge_of_sweep"] else ""
    start = (f"`{name}`", f"{method['rate']:g}{edge}", f"{sum(reached)} of {len(reached)}")
    lowest = f"{figures['lowest_loss']['mean']:.2g}"
    if not all(reached):
        return (*start, "", "", "", lowest)
    steps = _spread(figures["steps"], digits=0)
    minus = _spread(method["minus_reference"]["steps"], sign="+", digits=0)
    return (*start, steps, minus, _spread(asdict(over_seeds(seconds))), lowest)


def _ranges(result: Mapping[str, Any]) -> list[str]:
    """The names of the accuracies by distance."""
    figures = next(iter(result["methods"].values()))["figures"]
    return [name for name in figures if name.startswith("accuracy_")]


def _experiment_row(name: str, method: Mapping[str, Any], ranges: Iterable[str]) -> tuple[str, ...]:
    figures = method["figures"]
    edge = " (edge of the sweep)" if method["is_edge_of_sweep"] else ""
    return (
        f"`{name}`",
        f"{method['rate']:g}{edge}",
        _spread(figures["accuracy"]),
        _spread(method["minus_reference"]["accuracy"], sign="+"),
        *(_spread(figures[one]) for one in ranges),
    )


def _spread(interval: Mapping[str, float], sign: str = "", digits: int = 3) -> str:
    mean, low, high = (f"{interval[name]:{sign}.{digits}f}" for name in ("mean", "low", "high"))
    return f"{mean} [{low}, {high}]"


def clients_table() -> str:
    head = ("client", "package and version", "use", "what the tests check", "tested by")
    return table(head, client_rows())


def vendors_table() -> str:
    head = (
        *("vendor", "routes", "package and version", "the line that changes"),
        *("what the tests check", "refused, and why"),
    )
    return table(head, vendor_rows())


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
    ROOT / "docs" / "experiments.md": {"experiments": experiments_tables},
    ROOT / "docs" / "instruments.md": {
        "calibration": calibration_table,
        "calibration-again": calibration_again_table,
    },
    ROOT / "docs" / "operations.md": {"settings": settings_table, "metrics": metrics_table},
    ROOT / "docs" / "scaling.md": {
        "exchanges": scaling_exchanges,
        "plan": scaling_plan,
        "schedule": scaling_schedule,
    },
    ROOT / "benchmarks" / "README.md": {"results": results_tables},
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
