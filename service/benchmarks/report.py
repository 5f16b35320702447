"""Reports of benchmark runs: JSON documents, CSV, the comparison of two runs, and plots.

HTTP and the command line share them. matplotlib is imported only for a plot: the import takes a
second, and a server does not need it.
"""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from engine.errors import InvalidInput
from service.benchmarks.job import BenchmarkJob, replica_of
from service.benchmarks.suites import SUITES, Measure, Row, Suite
from service.errors import NotAvailable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ValueT = TypeVar("ValueT")

# The palette of Okabe and Ito, which colour-blind readers can distinguish.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS = "osD^vPX"


def job_document(job: BenchmarkJob) -> dict[str, Any]:
    return {
        "object": "benchmark",
        "id": job.id,
        "replica": replica_of(job.id),
        "state": job.state,
        **asdict(job.plan),
        "created_at": job.created_at,
        "started_at": job.started_at,
        "finished_at": job.finished_at,
        "num_rows": job.num_rows,
        "rows": [dict(row) for row in job.rows],
        "machine": dict(job.machine),
        "error": job.error,
    }


def suite_document(suite: Suite) -> dict[str, Any]:
    return {
        "name": suite.name,
        "about": suite.about,
        "fields": ["lengths", *suite.fields],
        "lengths": suite.lengths,
        "attentions": suite.attentions,
        "known_attentions": suite.known_attentions,
        "labels": suite.labels,
        "x": asdict(suite.x),
        "measures": [asdict(measure) for measure in suite.measures],
    }


def rows_as_csv(job: BenchmarkJob) -> str:
    """Returns the rows as CSV, each with the run and the machine it comes from."""
    shared = {"id": job.id, "suite": job.plan.suite, "model": job.plan.model}
    provenance = {name: job.machine.get(name, "") for name in ("device", "commit", "lln", "torch")}
    text = io.StringIO()
    row_columns = dict.fromkeys(name for row in job.rows for name in row)
    columns = [*shared, *row_columns, *provenance]
    table = csv.DictWriter(text, columns, lineterminator="\n")
    table.writeheader()
    for row in job.rows:
        table.writerow(shared | dict(row) | provenance)
    return text.getvalue()


@dataclass(frozen=True, kw_only=True)
class Change:
    """One figure of a row, in both runs."""

    a: float
    b: float
    ratio: float | None
    """b divided by a; None if a is 0."""
    better: Literal["a", "b", "neither"]


@dataclass(frozen=True, kw_only=True)
class ComparedRow:
    key: Row
    measures: Mapping[str, Change]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    suite: str
    a: str
    b: str
    rows: tuple[ComparedRow, ...]
    only_in_a: tuple[Row, ...]
    only_in_b: tuple[Row, ...]
    plan: Mapping[str, tuple[Any, Any]]
    """The fields of the plans that differ. Such runs may not be comparable."""
    machine: Mapping[str, tuple[str | None, str | None]]
    """The properties of the machines that differ."""


def compare(a: BenchmarkJob, b: BenchmarkJob) -> Comparison:
    """Compares the rows that both runs have, and lists those that only one has."""
    if a.plan.suite != b.plan.suite:
        raise InvalidInput(
            f"only runs of the same suite can be compared; {a.id} is of {a.plan.suite} and "
            f"{b.id} of {b.plan.suite}",
            code="different_suites",
            param="b",
            limit=a.plan.suite,
            actual=b.plan.suite,
        )
    suite = SUITES[a.plan.suite]
    rows_a, rows_b = _by_key(suite, a), _by_key(suite, b)
    return Comparison(
        suite=suite.name,
        a=a.id,
        b=b.id,
        rows=tuple(
            ComparedRow(
                key=_key(suite, row),
                measures={
                    measure.name: _change(measure, row, rows_b[key])
                    for measure in suite.measures
                    if measure.name in row and measure.name in rows_b[key]
                },
            )
            for key, row in rows_a.items()
            if key in rows_b
        ),
        only_in_a=tuple(_key(suite, row) for key, row in rows_a.items() if key not in rows_b),
        only_in_b=tuple(_key(suite, row) for key, row in rows_b.items() if key not in rows_a),
        plan=_differences(asdict(a.plan), asdict(b.plan)),
        machine=_differences(a.machine, b.machine),
    )


def _differences(
    a: Mapping[str, ValueT], b: Mapping[str, ValueT]
) -> dict[str, tuple[ValueT | None, ValueT | None]]:
    names = sorted({*a, *b})
    return {name: (a.get(name), b.get(name)) for name in names if a.get(name) != b.get(name)}


def _by_key(suite: Suite, job: BenchmarkJob) -> dict[tuple[object, ...], Row]:
    return {suite.key(row): row for row in job.rows}


def _key(suite: Suite, row: Row) -> Row:
    return {name: row[name] for name in suite.key_columns}


def _change(measure: Measure, row_a: Row, row_b: Row) -> Change:
    a, b = float(row_a[measure.name]), float(row_b[measure.name])
    if a == b:
        better: Literal["a", "b", "neither"] = "neither"
    else:
        better = "b" if (b < a) == (measure.better == "lower") else "a"
    return Change(a=a, b=b, ratio=b / a if a else None, better=better)


def plot_png(job: BenchmarkJob) -> bytes:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise NotAvailable(
            "plots need matplotlib, which is not installed: install the extra 'figures'",
            param="format",
            actual="png",
        ) from error
    suite = SUITES[job.plan.suite]
    figure = Figure(figsize=(7.2, 4.6), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    _draw(axes, suite, job)
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    return picture.getvalue()


def _draw(axes: Axes, suite: Suite, job: BenchmarkJob) -> None:
    measure = suite.measures[0]
    lines = _lines(suite, job)
    for index, (label, points) in enumerate(lines.items()):
        xs, ys = zip(*sorted(points), strict=True)
        axes.plot(
            xs,
            ys,
            label=label,
            color=_COLOURS[index % len(_COLOURS)],
            marker=_MARKERS[index % len(_MARKERS)],
            markersize=5,
            linewidth=1.8,
        )
    if suite.grows_with_text:
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        _draw_guides(axes, [point for points in lines.values() for point in points])
        ticks = sorted({x for points in lines.values() for x, _ in points})
        axes.set_xticks(ticks, [f"{tick:,.0f}" for tick in ticks])
        axes.minorticks_off()
    axes.set_xlabel(f"{suite.x.name.replace('_', ' ')} ({suite.x.unit})")
    axes.set_ylabel(f"{measure.name.replace('_', ' ')} ({measure.unit})")
    axes.set_title(
        f"{suite.name}: {job.plan.model} on {job.machine.get('device', '')}", fontsize=10
    )
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    if lines:
        axes.legend(frameon=False, fontsize=9)
    else:
        axes.text(0.5, 0.5, "no rows yet", transform=axes.transAxes, ha="center")


def _lines(suite: Suite, job: BenchmarkJob) -> dict[str, list[tuple[float, float]]]:
    lines: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in job.rows:
        label = " ".join(str(row[name]) for name in suite.labels) or suite.measures[0].name
        lines[label].append((float(row[suite.x.name]), float(row[suite.measures[0].name])))
    return lines


def _draw_guides(axes: Axes, points: list[tuple[float, float]]) -> None:
    """Draws linear and quadratic growth from the fastest point of the shortest length."""
    if len({x for x, _ in points}) < 2:
        return
    start, end = min(x for x, _ in points), max(x for x, _ in points)
    base = min(y for x, y in points if x == start)
    top = max(y for _, y in points)
    for power, name, dashes in ((1, "linear", (6, 3)), (2, "quadratic", (2, 2))):
        reach = min(end, start * (2 * top / base) ** (1 / power))
        axes.plot(
            (start, reach),
            (base, base * (reach / start) ** power),
            label=name,
            color="#888888",
            linewidth=1,
            dashes=dashes,
            zorder=1,
        )
