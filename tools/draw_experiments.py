"""Draws docs/figures/mlm-small.png from the stored results of pre-training.

python tools/draw_experiments.py
"""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")  # needs no screen
from matplotlib import pyplot
from matplotlib.axes import Axes

from benchmarks.experiments.tables import Stored, watched_tokens
from engine.experiments.concentration import FIGURES

ROOT = Path(__file__).resolve().parent.parent
NAME = "mlm-small"
STORED = ROOT / "benchmarks" / "results" / "experiments" / NAME
PICTURE = ROOT / "docs" / "figures" / f"{NAME}.png"
# Okabe and Ito's colours, which colour-blind readers can tell apart.
COLOURS = {
    "softmax": "#000000",
    "lln": "#0072b2",
    "lln_diag": "#d55e00",
    "block_diagonal": "#009e73",
}
OTHERS = "#999999"


def main() -> None:
    stored = Stored(STORED)
    layers = int(stored.result["settings"]["layers"])
    rows = 1 + layers
    figure, axes = pyplot.subplots(rows, 3, figsize=(11, 3 * rows), layout="constrained")
    tokens = watched_tokens(stored)
    for method in stored.methods:
        seconds = stored.seconds(method).mean
        spent = [seconds * at / tokens[-1] for at in tokens]
        losses = [stored.figures(method)[f"loss_at_{at}"]["mean"] for at in tokens]
        draw(axes[0, 0], method, tokens, losses)
        draw(axes[0, 1], method, spent, losses)
        for layer in range(1, layers + 1):
            for axis, name in zip(axes[layer], FIGURES, strict=True):
                found = stored.figures(method)
                means = [found[f"{name}_of_layer_{layer}_at_{at}"]["mean"] for at in tokens]
                draw(axis, method, tokens, means)
                axis.set(title=f"layer {layer}: {name.replace('_', ' ')}", xlabel="tokens")
    axes[0, 0].set(title="held-out loss, nats", xlabel="tokens")
    axes[0, 1].set(title="held-out loss, nats", xlabel="CPU seconds")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    axes[0, 2].axis("off")
    axes[0, 2].legend(handles, labels, frameon=False, loc="center left")
    figure.savefig(PICTURE, dpi=100, metadata={"Software": None}, pil_kwargs={"optimize": True})


def draw(axis: Axes, method: str, x: list[int] | list[float], y: list[float]) -> None:
    axis.plot(x, y, "o-", markersize=3, color=COLOURS.get(method, OTHERS), label=method)


if __name__ == "__main__":
    main()
