"""A training run as a picture: its losses, and how every layer's attention changed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.training.trainer import ATTENTION_FILE, LOSS_KEYS, METRICS_FILE, WATCHED

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CURVES_FILE = "training.png"
_SMOOTHED_OVER = 20  # steps: batches differ a lot


def write_curves(folder: Path) -> Path | None:
    """Draw the metrics in this folder; None if matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        return None
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(4.2 * (1 + len(WATCHED)), 3.8), dpi=90, layout="constrained")
    FigureCanvasAgg(canvas)
    first, *others = canvas.subplots(1, 1 + len(WATCHED))
    _draw_losses(first, _lines(folder / METRICS_FILE))
    watched = _lines(folder / ATTENTION_FILE)
    for axis, name in zip(others, WATCHED, strict=True):
        _draw_layers(axis, name, watched)
    path = folder / CURVES_FILE
    # matplotlib's version is left out, so that the file changes only with the picture.
    canvas.savefig(path, metadata={"Software": None}, pil_kwargs={"optimize": True})
    return path


def smoothed(values: Sequence[float], over: int = _SMOOTHED_OVER) -> list[float]:
    """Replace each value by the mean of the last `over` values."""
    means = []
    for end in range(1, len(values) + 1):
        recent = values[max(end - over, 0) : end]
        means.append(sum(recent) / len(recent))
    return means


def _draw_losses(axis: Axes, steps: Sequence[Mapping[str, Any]]) -> None:
    for kind in dict.fromkeys(step["stage"] for step in steps):
        of_kind = [step for step in steps if step["stage"] == kind]
        numbers, losses = ([step[key] for step in of_kind] for key in ("step", "loss"))
        axis.plot(numbers, losses, ".", color="#bbbbbb", markersize=2)
        axis.plot(numbers, smoothed(losses), label=kind)
        for name, key in LOSS_KEYS.items():
            having = [step for step in of_kind if step.get(key) is not None]
            if having:
                values = smoothed([step[key] for step in having])
                places = [step["step"] for step in having]
                axis.plot(places, values, "--", linewidth=1, label=f"{kind}: {name}")
    axis.set(title=f"loss, and its mean over {_SMOOTHED_OVER} steps", xlabel="step")
    axis.legend(fontsize=8)


def _draw_layers(axis: Axes, name: str, watched: Sequence[Mapping[str, Any]]) -> None:
    steps = [line["step"] for line in watched]
    for layer in range(len(watched[0][name]) if watched else 0):
        values = [line[name][layer] for line in watched]
        if None not in values:
            axis.plot(steps, values, "o-", markersize=3, label=f"layer {layer}")
    axis.set(title=f"{name.replace('_', ' ')}, mean of a layer's heads", xlabel="step")
    axis.legend(fontsize=7)


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
