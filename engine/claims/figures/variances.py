"""Figure 4: the variance and mean of log P against the variance of the scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict

import torch
from torch import Tensor

from engine.claims.claim import HeadSample
from engine.claims.figures.figure import Figure, Method, Panel, RandomHeads, Series, Source
from engine.claims.lln_matching import Matching, entropy_matched, paper, refitted
from engine.claims.matrices import gaussian_heads, lln_matrix, log_variance, softmax_matrix

VARIANCES_SAMPLE = RandomHeads(tokens=384, head_size=32, draws=3)
VARIANCES = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0)


def variances(heads: tuple[HeadSample, ...]) -> Figure:
    del heads  # a head of a document has one variance only
    sample = VARIANCES_SAMPLE
    softmax = _curve("measured", "softmax", lambda q, k: float(log_variance(softmax_matrix(q, k))))
    mean = _curve("measured", "softmax", lambda q, k: float(softmax_matrix(q, k).log().mean()))
    predicted = _line("paper: s²", "lln_paper", VARIANCES, "paper")
    corrected = [s + s**2 / (2 * sample.head_size) for s in VARIANCES]
    paper_mean = [-math.log(sample.tokens) - s / 2 for s in VARIANCES]
    return Figure(
        name="figure4-variances",
        title="Variance and mean of log P against the variance of the scores",
        panels=(
            _variances_panel(
                "Softmax: variance",
                "Var(log P)",
                softmax,
                predicted,
                _line("corrected: s² + s⁴ / 2D", "lln_entropy", corrected, "corrected"),
            ),
            _variances_panel(
                "Softmax: mean",
                "mean of log P (nats)",
                mean,
                _line("paper: -ln N - s² / 2", "lln_paper", paper_mean, "paper"),
            ),
            _variances_panel(
                "LLN before and after matching",
                "Var(log P)",
                _line("softmax", "softmax", softmax.y),
                _curve(
                    "LLN, no matching",
                    "lln",
                    lambda q, k: float(log_variance(lln_matrix(q, k, 1.0, 1.0))),
                ),
                _curve("LLN, constants of the paper", "lln_paper", _matched(paper)),
                _curve("LLN, refitted constants", "lln_refitted", _matched(refitted)),
                _curve("LLN, matched by entropy", "lln_entropy", _matched(entropy_matched)),
            ),
        ),
        settings=asdict(sample),
    )


def _matched(matching: Matching) -> Callable[[Tensor, Tensor], float]:
    def variance(q: Tensor, k: Tensor) -> float:
        match = matching(q.unsqueeze(1), k.unsqueeze(1))
        return float(log_variance(lln_matrix(q, k, float(match.alpha), float(match.beta))))

    return variance


def _curve(label: str, method: Method, measure: Callable[[Tensor, Tensor], float]) -> Series:
    """The mean over a few random heads, which are the same for every curve."""
    sample = VARIANCES_SAMPLE
    generator = torch.Generator().manual_seed(4)
    values = []
    for variance in VARIANCES:
        total = 0.0
        for _ in range(sample.draws):
            q, k = gaussian_heads(generator, sample.tokens, sample.head_size, variance)
            total += measure(q, k)
        values.append(total / sample.draws)
    return _line(label, method, values)


def _line(
    label: str, method: Method, values: Sequence[float], source: Source = "measured"
) -> Series:
    return Series(label=label, method=method, x=VARIANCES, y=list(values), source=source)


def _variances_panel(title: str, y_label: str, *series: Series) -> Panel:
    return Panel(title=title, x_label="score variance s²", y_label=y_label, series=series)
