"""Figure 5: the variance of the log of a sum of log-normals, moderate and broad."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from engine.claims.claim import HeadSample
from engine.claims.figures.figure import Figure, Method, Panel, Series, Source
from engine.claims.matrices import gaussian

SUMS_TOKENS, SUMS_DRAWS = 512, 3
SIZES: dict[int, Method] = {32: "d32", 64: "d64", 128: "d128"}
MODERATE = (0.2, 0.4, 0.6, 0.8, 1.0, 1.2)
BROAD = (1.0, 4.0, 8.0, 12.0, 16.0, 20.0, 25.0, 30.0)


def log_normal_sum(heads: tuple[HeadSample, ...]) -> Figure:
    del heads  # the sums are of Gaussians by definition
    numerators, denominators = [], []
    for dim, method in SIZES.items():
        numerators += [
            _measured(dim, method, MODERATE, _numerator),
            _theory(f"paper, D = {dim}", method, "paper", partial(_fenton, count=dim)),
        ]
        denominators += [
            _measured(dim, method, MODERATE, _denominator),
            _theory(
                f"corrected, D = {dim}", method, "corrected", partial(_shared_query, count=dim)
            ),
        ]
    denominators.append(
        _theory(
            f"paper, N = {SUMS_TOKENS}", "softmax", "paper", partial(_fenton, count=SUMS_TOKENS)
        )
    )
    broad = [_measured(dim, method, BROAD, _numerator) for dim, method in SIZES.items()]
    return Figure(
        name="figure5-log-normal-sum",
        title="Variance of the log of LLN's sums of exponentials",
        panels=(
            _sums_panel("Numerator, moderate", *numerators),
            _sums_panel("Denominator, moderate", *denominators),
            _sums_panel("Numerator, broad", *broad),
        ),
        settings={"tokens": SUMS_TOKENS, "draws": SUMS_DRAWS},
    )


def _fenton(variance: float, count: int) -> float:
    """Var(log) of a sum of `count` independent log-normals, by Fenton's approximation."""
    return math.log1p(math.expm1(variance) / count)


def _shared_query(variance: float, count: int) -> float:
    """The same for the denominator: its terms share one query, which leaves half the variance."""
    return _fenton(variance / 2, count)


def _numerator(log_kernel: Tensor) -> float:
    return float(log_kernel.var())


def _denominator(log_kernel: Tensor) -> float:
    return float(log_kernel.logsumexp(-1).var())


def _measured(
    dim: int,
    method: Method,
    variances: tuple[float, ...],
    read: Callable[[Tensor], float],
) -> Series:
    generator = torch.Generator().manual_seed(dim)
    values = []
    for variance in variances:
        scale, total = math.sqrt(variance / 2), 0.0
        for _ in range(SUMS_DRAWS):
            q, k = (scale * gaussian(generator, SUMS_TOKENS, dim) for _ in range(2))
            total += read((q.exp() @ k.exp().mT).log())
        values.append(total / SUMS_DRAWS)
    return Series(label=f"measured, D = {dim}", method=method, x=variances, y=values)


def _theory(
    label: str, method: Method, source: Source, formula: Callable[[float], float]
) -> Series:
    values = [formula(variance) for variance in MODERATE]
    return Series(label=label, method=method, x=MODERATE, y=values, source=source)


def _sums_panel(title: str, *series: Series) -> Panel:
    return Panel(
        title=title,
        x_label="feature variance α²σ_q² + β²σ_k²",
        y_label="variance of the log of the sum",
        series=series,
    )
