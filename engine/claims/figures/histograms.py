"""Figure 7: how the entries of P are distributed, on random heads and on two of a model's."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from engine.claims.claim import HeadSample
from engine.claims.figures.figure import Figure, Method, Panel, RandomHeads, Series
from engine.claims.figures.matched_matrices import matched_matrices
from engine.claims.matrices import gaussian_heads
from engine.errors import InvalidInput

HISTOGRAM = RandomHeads(tokens=512, head_size=32)
SCORE_VARIANCE = 2.0
BINS = 60
TAIL = 1e-3
"""The share of entries that a panel leaves out at either end."""

HISTOGRAM_LABELS: dict[Method, str] = {
    "softmax": "softmax",
    "lln": "LLN, no matching",
    "lln_paper": "LLN, constants of the paper",
    "lln_entropy": "LLN, matched by entropy",
}


def histograms(heads: tuple[HeadSample, ...]) -> Figure:
    """The model's two heads come from its first and its last layer."""
    if not heads:
        raise InvalidInput("histograms need the heads of a document", param="heads")
    generator = torch.Generator().manual_seed(7)
    random = gaussian_heads(generator, HISTOGRAM.tokens, HISTOGRAM.head_size, SCORE_VARIANCE)
    panels = [
        _histogram_panel(f"Gaussian, score variance {SCORE_VARIANCE:g}", *random, fitted=True)
    ]
    for head in (heads[0], heads[-1]):
        title = f"layer {head.layer}, head {head.head}, {len(head.q)} tokens"
        panels.append(_histogram_panel(title, head.q, head.k - head.k.mean(0)))
    return Figure(
        name="figure7-histograms",
        title="Distribution of the entries of P",
        panels=tuple(panels),
        settings={
            "tokens": HISTOGRAM.tokens,
            "head_size": HISTOGRAM.head_size,
            "score_variance": SCORE_VARIANCE,
        },
    )


def _histogram_panel(title: str, q: Tensor, k: Tensor, *, fitted: bool = False) -> Panel:
    logs = {method: matrix.log().flatten() for method, matrix in matched_matrices(q, k).items()}
    ends = [_quantiles(values) for values in logs.values()]
    low, high = min(end[0] for end in ends), max(end[1] for end in ends)
    series = [
        _histogram(HISTOGRAM_LABELS[method], method, values, low, high)
        for method, values in logs.items()
    ]
    if fitted:
        series += [_normal(series[0].x, len(q), HISTOGRAM.head_size)]
    return Panel(title=title, x_label="log P (nats)", y_label="density", series=tuple(series))


def _quantiles(values: Tensor) -> tuple[float, float]:
    ordered = values.sort().values
    cut = int(TAIL * len(ordered))
    return float(ordered[cut]), float(ordered[-1 - cut])


def _histogram(label: str, method: Method, values: Tensor, low: float, high: float) -> Series:
    counts = values.histc(BINS, low, high)
    width = (high - low) / BINS
    centres = [low + (index + 0.5) * width for index in range(BINS)]
    return Series(label=label, method=method, x=centres, y=(counts / len(values) / width).tolist())


def _normal(x: Sequence[float], tokens: int, dim: int) -> Series:
    """The log-normal density with the corrected variance and the paper's mean."""
    variance = SCORE_VARIANCE + SCORE_VARIANCE**2 / (2 * dim)
    mean = -math.log(tokens) - SCORE_VARIANCE / 2
    density = [
        math.exp(-((value - mean) ** 2) / (2 * variance)) / math.sqrt(2 * math.pi * variance)
        for value in x
    ]
    label = "softmax, corrected theory"
    return Series(label=label, method="softmax", x=list(x), y=density, source="corrected")
