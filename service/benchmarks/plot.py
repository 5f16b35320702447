"""A run as a picture: its first measure by its x, with the slopes of linear and quadratic growth.

matplotlib is imported when a picture is asked for: it takes a second, and a server can do without.
"""

from __future__ import annotations

import io
from collections import defaultdict
from typing import TYPE_CHECKING

from service.benchmarks.job import BenchmarkJob
from service.benchmarks.suite import Suite
from service.benchmarks.suites import SUITES
from service.errors import NotAvailable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours, which colour-blind readers can tell apart too.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS = "osD^vPX"


def plot_png(job: BenchmarkJob) -> bytes:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise NotAvailable(
            "pictures need matplotlib, the extra 'figures', which is not installed",
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
    """How a time would grow from the fastest of the shortest texts."""
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
