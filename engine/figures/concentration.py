"""The paper's figure 2: how entropy and spectral gap follow the temperature, kernel by kernel."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from engine.claims import HeadSample
from engine.claims.matrices import gaussian_heads
from engine.diagnostics.dense import mean_row_entropy, second_modulus
from engine.figures.figure import Figure, Method, Panel, Series
from engine.figures.matched import matched_matrices
from engine.model.baselines import find_baseline

TOKENS, HEAD_SIZE, DRAWS = 256, 64, 8
TEMPERATURES = (0.4, 0.5, 0.6, 0.75, 1.0, 1.4, 2.0, 3.0, 5.0)
LABELS: dict[Method, str] = {
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
    """Random queries and keys whose scores have the standard deviation 1 / temperature."""
    del heads  # a document's head has the one temperature it has
    generator = torch.Generator().manual_seed(2)
    entropies = {method: [0.0] * len(TEMPERATURES) for method in LABELS}
    gaps = {method: [0.0] * len(TEMPERATURES) for method in LABELS}
    for index, temperature in enumerate(TEMPERATURES):
        for _ in range(DRAWS):
            q, k = gaussian_heads(generator, TOKENS, HEAD_SIZE, temperature**-2)
            for method, matrix in _matrices(q, k).items():
                entropies[method][index] += float(mean_row_entropy(matrix)) / math.log(2) / DRAWS
                gaps[method][index] += (1 - float(second_modulus(matrix))) / DRAWS
    return Figure(
        name="figure2-concentration",
        title="Entropy and spectral gap against temperature",
        panels=(
            _panel("Entropy", "mean row entropy (bits)", entropies),
            _panel("Spectral gap", "1 - |second eigenvalue|", gaps),
        ),
        settings={"tokens": TOKENS, "head_size": HEAD_SIZE, "draws": DRAWS},
    )


def _matrices(q: Tensor, k: Tensor) -> dict[Method, Tensor]:
    one_q, one_k = q.unsqueeze(1), k.unsqueeze(1)
    baselines = {name: find_baseline(name).matrix(one_q, one_k)[0] for name in BASELINES}
    return matched_matrices(q, k) | baselines


def _panel(title: str, y_label: str, curves: dict[Method, list[float]]) -> Panel:
    return Panel(
        title=title,
        x_label="softmax temperature, 1 / standard deviation of the scores",
        y_label=y_label,
        log_x=True,
        series=tuple(
            Series(label=label, method=method, x=TEMPERATURES, y=curves[method])
            for method, label in LABELS.items()
        ),
    )
