"""Draws the figures: a PNG each, and its numbers as JSON beside it.

matplotlib is imported when a figure is drawn, because serving does not need it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from engine.claims.claim import HeadSample
from engine.claims.figures.concentration import concentration
from engine.claims.figures.figure import Figure, Method, Panel, Series, Source
from engine.claims.figures.histograms import histograms
from engine.claims.figures.log_normal_sum import log_normal_sum
from engine.claims.figures.variances import variances
from engine.errors import InvalidInput, unknown_name
from engine.platform.files import named_in_errors

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FIGURES: Mapping[str, Callable[[tuple[HeadSample, ...]], Figure]] = MappingProxyType(
    {
        "concentration": concentration,
        "variances": variances,
        "log-normal-sum": log_normal_sum,
        "histograms": histograms,
    }
)

# Okabe and Ito's colours, which colour-blind readers can tell apart.
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
_MAX_MARKED_POINTS = 12  # a curve of more points, such as a histogram, has no markers


def draw_figures(
    out: Path, heads: tuple[HeadSample, ...], only: Sequence[str] | None = None
) -> Iterator[Path]:
    """Draw and write each figure; its path is yielded once the files are there."""
    names = find_figures(only)
    out.mkdir(parents=True, exist_ok=True)
    for name in names:
        figure = FIGURES[name](heads)
        path = out / f"{figure.name}.png"
        with named_in_errors(path):
            draw(figure, path)
            path.with_suffix(".json").write_text(_as_json(figure))
        yield path


def find_figures(only: Sequence[str] | None) -> Sequence[str]:
    """The given names, checked; all figures for None."""
    for name in only or ():
        if name not in FIGURES:
            raise unknown_name("figure", name, FIGURES, param="only", code="unknown_figure")
    return only or tuple(FIGURES)


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
    # matplotlib's version is left out, so that the file changes only with the picture.
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
    is_marked = series.source == "measured" and len(series.x) <= _MAX_MARKED_POINTS
    axis.plot(
        series.x,
        series.y,
        _LINES[series.source],
        color=_COLOURS[series.method],
        marker="o" if is_marked else None,
        markersize=3.5,
        # A wide line for softmax, so that curves that match it do not hide it.
        linewidth=3.2 if series.method == "softmax" and series.source == "measured" else 1.5,
        zorder=2,
        label=series.label,
    )


def _as_json(figure: Figure) -> str:
    """Rounded to five digits, so that the file changes only when the figure does."""
    return json.dumps(_rounded(asdict(figure)), indent=1, ensure_ascii=False) + "\n"


def _rounded(value: object) -> object:
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, Mapping):
        return {name: _rounded(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return value
