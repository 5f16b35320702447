"""LLN attention in factor form: P = pi kappa, a mixture of D channels.

Channel c spreads over the tokens with weights kappa_cj, token i picks a channel with probability
pi_ic. Both are softmaxes, so no finite input overflows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from engine.diagnostics.view import HeadMap, HeadView
from engine.huge_pages import on_huge_pages

_TOKENS_A_TILE = 4_096


class Factors(NamedTuple):
    pi: Tensor  # [H, N, D] rows sum to 1
    kappa: Tensor  # [H, D, N] rows sum to 1

    def to(self, dtype: torch.dtype) -> Factors:
        """In another type; what float32 could hold only as a subnormal number, which is slow to
        compute with, is 0 in it."""
        if dtype == self.pi.dtype:
            return self
        return Factors(*(_without_subnormals(_brought_to(part, dtype)) for part in self))

    @property
    def chain(self) -> Tensor:
        """T = kappa pi, a stochastic matrix with the non-zero spectrum of P: [H, D, D]."""
        return torch.bmm(self.kappa, self.pi)

    @property
    def overlap(self) -> Tensor:
        """kappa kappa^T: [H, D, D]."""
        return torch.bmm(self.kappa, self.kappa.mT)


def _brought_to(part: Tensor, dtype: torch.dtype) -> Tensor:
    return on_huge_pages(torch.empty_like(part, dtype=dtype)).copy_(part)


def _without_subnormals(part: Tensor) -> Tensor:
    return torch.nn.functional.threshold(part, torch.finfo(part.dtype).tiny, 0.0, inplace=True)


def lln_factors(view: HeadView) -> Factors:
    """pi and kappa of every head, in float64."""
    assert view.alpha is not None, "an LLN view has alpha"
    assert view.beta is not None, "an LLN view has beta"
    masses = [
        channel_exponents(view.k[tile], view.k_map, view.beta).logsumexp(1)
        for tile in token_tiles(view.num_tokens)
    ]
    log_mass = torch.stack(masses).logsumexp(0).unsqueeze(1)  # [H, 1, D]
    shape = (view.num_heads, view.num_tokens, view.head_size)
    pi = on_huge_pages(torch.empty(shape, dtype=torch.float64, device=view.q.device))
    kappa = on_huge_pages(torch.empty_like(pi.mT, memory_format=torch.contiguous_format))
    for tile in token_tiles(view.num_tokens):
        queries = channel_exponents(view.q[tile], view.q_map, view.alpha)
        pi[:, tile] = (queries + log_mass).softmax(-1)
        keys = channel_exponents(view.k[tile], view.k_map, view.beta)
        kappa[:, :, tile] = (keys - log_mass).exp_().mT
    return Factors(pi, kappa)


def token_tiles(num_tokens: int) -> Iterator[slice]:
    """Tokens by so many that what lies between two operations stays in cache."""
    for start in range(0, num_tokens, _TOKENS_A_TILE):
        yield slice(start, min(start + _TOKENS_A_TILE, num_tokens))


def channel_exponents(rows: Tensor, head_map: HeadMap | None, scale: Tensor) -> Tensor:
    """alpha (q W + b), or the same of keys: [H, N, D]."""
    features = rows.double().transpose(0, 1)
    if head_map is not None:
        weight, bias = head_map
        if weight is not None:
            features = torch.bmm(features, weight.to(features))
        features = features + bias.to(features).unsqueeze(1)
    return scale.to(features)[:, None, None] * features
