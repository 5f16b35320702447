"""The figures there are: each computed, drawn as PNG, and written as JSON beside it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType

from engine.claims import HeadSample
from engine.errors import InvalidInput
from engine.figures.concentration import concentration
from engine.figures.figure import Figure
from engine.figures.histograms import histograms
from engine.figures.log_normal_sum import log_normal_sum
from engine.figures.plot import draw
from engine.figures.variances import variances

FIGURES: Mapping[str, Callable[[tuple[HeadSample, ...]], Figure]] = MappingProxyType(
    {
        "concentration": concentration,
        "variances": variances,
        "log-normal-sum": log_normal_sum,
        "histograms": histograms,
    }
)


def draw_figures(
    out: Path, heads: tuple[HeadSample, ...], only: Sequence[str] | None = None
) -> Iterator[Path]:
    """Writes each figure when its path is asked for."""
    for name in find_figures(only):
        figure = FIGURES[name](heads)
        out.mkdir(parents=True, exist_ok=True)
        path = out / f"{figure.name}.png"
        draw(figure, path)
        path.with_suffix(".json").write_text(_as_json(figure))
        yield path


def find_figures(only: Sequence[str] | None) -> Sequence[str]:
    """The figures of these names; all of them for None."""
    for name in only or ():
        if name not in FIGURES:
            known = ", ".join(FIGURES)
            raise InvalidInput(
                f"there is no figure {name!r}; there are {known}",
                code="unknown_figure",
                param="only",
                limit=known,
                actual=name,
            )
    return only or tuple(FIGURES)


def _as_json(figure: Figure) -> str:
    """Rounded to what the eye sees, so that the file changes when the figure does."""
    return json.dumps(_rounded(asdict(figure)), indent=1, ensure_ascii=False) + "\n"


def _rounded(value: object) -> object:
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, Mapping):
        return {name: _rounded(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return value
