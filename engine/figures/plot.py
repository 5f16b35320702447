"""Figures as PNG. matplotlib is imported when one is drawn: serving does without it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import InvalidInput
from engine.figures.figure import Figure, Method, Panel, Series, Source

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours, which colour-blind readers can tell apart too.
_COLOURS: Mapping[Method, str] = {
    "softmax": "#000000",
    "lln": "#56B4E9",
    "lln_paper": "#0072B2",
    "lln_refitted": "#009E73",
    "lln_entropy": "#D55E00",
    "elu": "#CC79A7",
    "relu": "#E69F00",
    "quadratic": "#999999",
    "d32": "#0072B2",
    "d64": "#D55E00",
    "d128": "#009E73",
}
_LINES: Mapping[Source, str] = {"measured": "-", "paper": "--", "corrected": ":"}
_MARKED_POINTS = 12  # a histogram has more, and is drawn without marks


def draw(figure: Figure, path: Path) -> None:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure as Canvas
    except ImportError as error:
        raise InvalidInput(
            "figures need matplotlib, the extra 'figures', which is not installed",
            code="missing_extra",
            param="figures",
        ) from error
    canvas = Canvas(figsize=(4.9 * len(figure.panels), 4.1), dpi=100, layout="constrained")
    FigureCanvasAgg(canvas)
    axes = canvas.subplots(1, len(figure.panels), squeeze=False)[0]
    for axis, panel in zip(axes, figure.panels, strict=True):
        _draw_panel(axis, panel)
    canvas.suptitle(figure.title, fontsize=11)
    # Without matplotlib's version, which would change the file.
    canvas.savefig(path, metadata={"Software": None}, pil_kwargs={"optimize": True})


def _draw_panel(axis: Axes, panel: Panel) -> None:
    for series in panel.series:
        _draw_series(axis, series)
    if panel.log_x:
        axis.set_xscale("log")
        ticks = panel.series[0].x
        axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.minorticks_off()
    axis.set_title(panel.title, fontsize=10)
    axis.set_xlabel(panel.x_label)
    axis.set_ylabel(panel.y_label)
    axis.grid(True, alpha=0.25)
    axis.legend(fontsize=8, framealpha=0.9)


def _draw_series(axis: Axes, series: Series) -> None:
    is_marked = series.source == "measured" and len(series.x) <= _MARKED_POINTS
    axis.plot(
        series.x,
        series.y,
        _LINES[series.source],
        color=_COLOURS[series.method],
        marker="o" if is_marked else None,
        markersize=3.5,
        # What the others are compared with stays visible below them.
        linewidth=3.2 if series.method == "softmax" and series.source == "measured" else 1.5,
        zorder=2,
        label=series.label,
    )
