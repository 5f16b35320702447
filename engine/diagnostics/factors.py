"""LLN attention in factor form: P = pi kappa, a mixture of D channels.

Channel c spreads over the tokens with weights kappa_cj, token i picks a channel with probability
pi_ic. Both are softmaxes, so no finite input overflows.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from engine.diagnostics.view import HeadMap, HeadView


class Factors(NamedTuple):
    pi: Tensor  # [H, N, D] rows sum to 1
    kappa: Tensor  # [H, D, N] rows sum to 1

    @property
    def chain(self) -> Tensor:
        """T = kappa pi, a stochastic matrix with the non-zero spectrum of P: [H, D, D]."""
        return torch.bmm(self.kappa, self.pi)

    @property
    def overlap(self) -> Tensor:
        """kappa kappa^T: [H, D, D]."""
        return torch.bmm(self.kappa, self.kappa.mT)


def lln_factors(view: HeadView) -> Factors:
    """pi and kappa of every head, in float64."""
    assert view.alpha is not None, "an LLN view has alpha"
    assert view.beta is not None, "an LLN view has beta"
    key_exponents = channel_exponents(view.k, view.k_map, view.beta)  # [H, N, D]
    log_mass = key_exponents.logsumexp(1, keepdim=True)
    pi = (channel_exponents(view.q, view.q_map, view.alpha) + log_mass).softmax(-1)
    return Factors(pi, (key_exponents - log_mass).exp_().transpose(1, 2).contiguous())


def channel_exponents(rows: Tensor, head_map: HeadMap | None, scale: Tensor) -> Tensor:
    """alpha (q W + b), or the same of keys: [H, N, D]."""
    features = rows.double().transpose(0, 1)
    if head_map is not None:
        weight, bias = head_map
        if weight is not None:
            features = torch.bmm(features, weight.to(features))
        features = features + bias.to(features).unsqueeze(1)
    return scale.to(features)[:, None, None] * features
