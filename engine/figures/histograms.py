"""The paper's figure 7: how the entries of P are distributed, on random and on real heads."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from engine.claims import HeadSample
from engine.claims.matrices import gaussian_heads
from engine.errors import InvalidInput
from engine.figures.figure import Figure, Method, Panel, Series
from engine.figures.matched import matched_matrices

TOKENS, HEAD_SIZE, SCORE_VARIANCE = 512, 32, 2.0
BINS = 60
TAIL = 1e-3
"""The share of entries at either end that a panel leaves out."""

LABELS: dict[Method, str] = {
    "softmax": "softmax",
    "lln": "LLN, no matching",
    "lln_paper": "LLN, constants of the paper",
    "lln_entropy": "LLN, matched by entropy",
}


def histograms(heads: tuple[HeadSample, ...]) -> Figure:
    """Of Gaussian queries and keys, and of two heads of the model: of the first and last layer."""
    if not heads:
        raise InvalidInput("histograms need the heads of a document", param="heads")
    generator = torch.Generator().manual_seed(7)
    random = gaussian_heads(generator, TOKENS, HEAD_SIZE, SCORE_VARIANCE)
    panels = [_panel(f"Gaussian, score variance {SCORE_VARIANCE:g}", *random, fitted=True)]
    for head in (heads[0], heads[-1]):
        title = f"layer {head.layer}, head {head.head}, {len(head.q)} tokens"
        panels.append(_panel(title, head.q, head.k - head.k.mean(0)))
    return Figure(
        name="figure7-histograms",
        title="Distribution of the entries of P",
        panels=tuple(panels),
        settings={"tokens": TOKENS, "head_size": HEAD_SIZE, "score_variance": SCORE_VARIANCE},
    )


def _panel(title: str, q: Tensor, k: Tensor, *, fitted: bool = False) -> Panel:
    logs = {method: matrix.log().flatten() for method, matrix in matched_matrices(q, k).items()}
    ends = [_quantiles(values) for values in logs.values()]
    low, high = min(end[0] for end in ends), max(end[1] for end in ends)
    series = [
        _histogram(LABELS[method], method, values, low, high) for method, values in logs.items()
    ]
    if fitted:
        series += [_normal(series[0].x, len(q), HEAD_SIZE)]
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
    """The log-normal law, with the corrected variance, around the paper's mean."""
    variance = SCORE_VARIANCE + SCORE_VARIANCE**2 / (2 * dim)
    mean = -math.log(tokens) - SCORE_VARIANCE / 2
    density = [
        math.exp(-((value - mean) ** 2) / (2 * variance)) / math.sqrt(2 * math.pi * variance)
        for value in x
    ]
    label = "softmax, corrected theory"
    return Series(label=label, method="softmax", x=list(x), y=density, source="corrected")
