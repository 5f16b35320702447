"""Figure 2: entropy and spectral gap against the temperature, for softmax and linear kernels."""

from __future__ import annotations

import math
from dataclasses import asdict

import torch
from torch import Tensor

from engine.claims.claim import HeadSample
from engine.claims.figures.figure import Figure, Method, Panel, RandomHeads, Series
from engine.claims.figures.matched_matrices import matched_matrices
from engine.claims.matrices import gaussian_heads, mean_row_entropy, second_modulus
from engine.model.baselines import find_baseline

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
    """Queries and keys are random; their scores have the standard deviation 1 / temperature."""
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
    return matched_matrices(q, k) | baselines


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
