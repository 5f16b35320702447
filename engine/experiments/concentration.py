"""How concentrated attention is, layer by layer, in a model of any attention kind.

The LLN paper watches three figures in training: the temperature, which is one over the standard
deviation of a row's scores, the entropy of a row, and the spectral gap, 1 - |lambda_2|. They are
read off the dense matrix, so of short texts only; a figure is the mean over the layer's heads.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from engine.diagnostics.linear_algebra import eigenvalues
from engine.diagnostics.rows import entropy_of_probabilities
from engine.diagnostics.temperature import score_variance
from engine.experiments.encoder import SmallEncoder
from engine.experiments.lln_scales import scales_of
from engine.model.baselines import Baseline

FIGURES = ("temperature", "entropy", "spectral_gap")


@torch.no_grad()
def layer_figures(model: SmallEncoder, tokens: Tensor) -> Iterator[dict[str, float]]:
    """The figures of each layer, reading one text [N], with alpha and beta if it matches them."""
    for attention, q, k in model.heads_of(tokens[None]):
        yield {**concentration(attention, q, k), **scales_of(attention, q, k)}


def concentration(attention: Baseline, q: Tensor, k: Tensor) -> dict[str, float]:
    """The concentration figures of one layer's queries and keys [N, H, D]."""
    q, k = q.double(), k.double()
    deviation = (score_variance(q, k) / q.shape[-1]).sqrt()
    matrix = attention.matrix(q, k)
    # Nystromformer's matrix may have entries below zero.
    positive = matrix.clamp_min(0)
    probabilities = positive / positive.sum(-1, keepdim=True)
    second = eigenvalues(matrix).abs().topk(2).values[:, 1]
    return {
        "temperature": float((1 / deviation).mean()),
        "entropy": float(entropy_of_probabilities(probabilities).mean()),
        "spectral_gap": float((1 - second).mean()),
    }
