"""The numbers behind the LLN paper's figures: curves and histograms as plain data.

Each figure has one function, which measures matrices and puts the paper's predictions beside them.
`figures.py` draws the result and writes it as JSON.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from engine.claims.claim import HeadSample
from engine.claims.lln_matching import Matching, entropy_matched, paper, refitted
from engine.claims.matrices import (
    gaussian,
    gaussian_heads,
    lln_matrix,
    log_variance,
    mean_row_entropy,
    second_modulus,
    softmax_matrix,
)
from engine.errors import InvalidInput
from engine.model.baselines import find_baseline

Source: TypeAlias = Literal["measured", "paper", "corrected"]
"""Measured on matrices, predicted by the paper, or predicted by its corrected claim."""

Method: TypeAlias = Literal[
    "softmax",
    "lln",
    "lln_paper",
    "lln_refitted",
    "lln_entropy",
    "elu",
    "relu",
    "quadratic",
    "d32",
    "d64",
    "d128",
]
"""What a curve shows. A method has the same colour in every figure."""


@dataclass(frozen=True, kw_only=True)
class Series:
    label: str
    method: Method
    x: Sequence[float]
    y: Sequence[float]
    source: Source = "measured"


@dataclass(frozen=True, kw_only=True)
class Panel:
    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    log_x: bool = False


@dataclass(frozen=True, kw_only=True)
class Figure:
    name: str  # of its files
    title: str
    panels: tuple[Panel, ...]
    settings: Mapping[str, float | int | str]  # of the random matrices


@dataclass(frozen=True, kw_only=True)
class RandomHeads:
    """The size of the random heads that a figure measures, and how many it averages over."""

    tokens: int
    head_size: int
    draws: int = 1


def _matched_matrices(q: Tensor, k: Tensor) -> dict[Method, Tensor]:
    """Attention matrices of queries and keys [N, D]: softmax, and LLN with each matching."""
    one_q, one_k = q.unsqueeze(1), k.unsqueeze(1)
    published, matched = paper(one_q, one_k), entropy_matched(one_q, one_k)
    return {
        "softmax": softmax_matrix(q, k),
        "lln": lln_matrix(q, k, 1.0, 1.0),
        "lln_paper": lln_matrix(q, k, float(published.alpha), float(published.beta)),
        "lln_entropy": lln_matrix(q, k, float(matched.alpha), float(matched.beta)),
    }


CONCENTRATION = RandomHeads(tokens=256, head_size=64, draws=8)
TEMPERATURES = (0.4, 0.5, 0.6, 0.75, 1.0, 1.4, 2.0, 3.0, 5.0)
CONCENTRATION_LABELS: dict[Method, str] = {
    "softmax": "softmax",
    "lln_paper": "LLN, moment matching of the paper",
    "lln_entropy": "LLN, matched by entropy",
    "lln": "LLN, no matching (α = β = 1)",
    "elu": "ELU",
    "relu": "ReLU",
    "quadratic": "quadratic",
}
BASELINES: tuple[Method, ...] = ("elu", "relu", "quadratic")


def concentration(heads: tuple[HeadSample, ...]) -> Figure:
    """Figure 2: entropy and spectral gap against the temperature, for softmax and linear kernels.

    Queries and keys are random; their scores have the standard deviation 1 / temperature.
    """
    del heads  # a head of a document has one temperature only
    sample = CONCENTRATION
    generator = torch.Generator().manual_seed(2)
    entropies = {method: [0.0] * len(TEMPERATURES) for method in CONCENTRATION_LABELS}
    gaps = {method: [0.0] * len(TEMPERATURES) for method in CONCENTRATION_LABELS}
    for index, temperature in enumerate(TEMPERATURES):
        for _ in range(sample.draws):
            q, k = gaussian_heads(generator, sample.tokens, sample.head_size, temperature**-2)
            for method, matrix in _matrices(q, k).items():
                bits = float(mean_row_entropy(matrix)) / math.log(2)
                entropies[method][index] += bits / sample.draws
                gaps[method][index] += (1 - float(second_modulus(matrix))) / sample.draws
    return Figure(
        name="figure2-concentration",
        title="Entropy and spectral gap against temperature",
        panels=(
            _curves_panel("Entropy", "mean row entropy (bits)", entropies),
            _curves_panel("Spectral gap", "1 - |second eigenvalue|", gaps),
        ),
        settings=asdict(sample),
    )


def _matrices(q: Tensor, k: Tensor) -> dict[Method, Tensor]:
    one_q, one_k = q.unsqueeze(1), k.unsqueeze(1)
    baselines = {name: find_baseline(name).matrix(one_q, one_k)[0] for name in BASELINES}
    return _matched_matrices(q, k) | baselines


def _curves_panel(title: str, y_label: str, curves: dict[Method, list[float]]) -> Panel:
    return Panel(
        title=title,
        x_label="softmax temperature, 1 / standard deviation of the scores",
        y_label=y_label,
        log_x=True,
        series=tuple(
            Series(label=label, method=method, x=TEMPERATURES, y=curves[method])
            for method, label in CONCENTRATION_LABELS.items()
        ),
    )


VARIANCES_SAMPLE = RandomHeads(tokens=384, head_size=32, draws=3)
VARIANCES = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0)


def variances(heads: tuple[HeadSample, ...]) -> Figure:
    """Figure 4: the variance and mean of log P against the variance of the scores."""
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


SUMS_TOKENS, SUMS_DRAWS = 512, 3
SIZES: dict[int, Method] = {32: "d32", 64: "d64", 128: "d128"}
MODERATE = (0.2, 0.4, 0.6, 0.8, 1.0, 1.2)
BROAD = (1.0, 4.0, 8.0, 12.0, 16.0, 20.0, 25.0, 30.0)


def log_normal_sum(heads: tuple[HeadSample, ...]) -> Figure:
    """Figure 5: the variance of the log of a sum of log-normals, moderate and broad."""
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
    """Figure 7: how the entries of P are distributed, on random heads and on two of the model's.

    The model's two heads come from its first and its last layer.
    """
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
    logs = {method: matrix.log().flatten() for method, matrix in _matched_matrices(q, k).items()}
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
