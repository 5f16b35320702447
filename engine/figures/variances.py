"""The paper's figure 4: variance and mean of log P, and the variance before and after matching."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from engine.adapt.matching import Matching, entropy_matched, paper, refitted
from engine.claims import HeadSample
from engine.claims.matrices import gaussian_heads
from engine.diagnostics.dense import lln_matrix, log_variance, softmax_matrix
from engine.figures.figure import Figure, Method, Panel, Series, Source

TOKENS, HEAD_SIZE, DRAWS = 384, 32, 3
VARIANCES = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0)


def variances(heads: tuple[HeadSample, ...]) -> Figure:
    del heads  # a document's head has the one variance it has
    softmax = _curve("measured", "softmax", lambda q, k: float(log_variance(softmax_matrix(q, k))))
    mean = _curve("measured", "softmax", lambda q, k: float(softmax_matrix(q, k).log().mean()))
    predicted = _line("paper: s²", "lln_paper", VARIANCES, "paper")
    corrected = [s + s**2 / (2 * HEAD_SIZE) for s in VARIANCES]
    paper_mean = [-math.log(TOKENS) - s / 2 for s in VARIANCES]
    return Figure(
        name="figure4-variances",
        title="Variance and mean of log P against the variance of the scores",
        panels=(
            _panel(
                "Softmax: variance",
                "Var(log P)",
                softmax,
                predicted,
                _line("corrected: s² + s⁴ / 2D", "lln_entropy", corrected, "corrected"),
            ),
            _panel(
                "Softmax: mean",
                "mean of log P (nats)",
                mean,
                _line("paper: -ln N - s² / 2", "lln_paper", paper_mean, "paper"),
            ),
            _panel(
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
        settings={"tokens": TOKENS, "head_size": HEAD_SIZE, "draws": DRAWS},
    )


def _matched(matching: Matching) -> Callable[[Tensor, Tensor], float]:
    def variance(q: Tensor, k: Tensor) -> float:
        match = matching(q.unsqueeze(1), k.unsqueeze(1))
        return float(log_variance(lln_matrix(q, k, float(match.alpha), float(match.beta))))

    return variance


def _curve(label: str, method: Method, measure: Callable[[Tensor, Tensor], float]) -> Series:
    """The mean over a few draws, the same ones for every curve."""
    generator = torch.Generator().manual_seed(4)
    values = [
        sum(measure(*gaussian_heads(generator, TOKENS, HEAD_SIZE, variance)) for _ in range(DRAWS))
        / DRAWS
        for variance in VARIANCES
    ]
    return _line(label, method, values)


def _line(
    label: str, method: Method, values: Sequence[float], source: Source = "measured"
) -> Series:
    return Series(label=label, method=method, x=VARIANCES, y=list(values), source=source)


def _panel(title: str, y_label: str, *series: Series) -> Panel:
    return Panel(title=title, x_label="score variance s²", y_label=y_label, series=series)
