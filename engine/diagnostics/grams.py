"""Second moments of a layer's queries and keys, for all that needs no more of them.

Tokens are taken some at a time: arrays as long as a long text, made for one use, cost more time to
be had from the system and given back than to be computed with.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from engine.diagnostics.factors import token_tiles
from engine.diagnostics.view import HeadView
from engine.diagnostics.work import Work


class Grams(NamedTuple):
    q: Tensor  # [H, D, D] Q^T Q
    k: Tensor  # [H, D, D] K^T K
    k_covariance: Tensor  # [H, D, D]


def grams_of(view: HeadView) -> Work[Grams]:
    num_heads, size = view.num_heads, view.head_size
    gram_q = torch.zeros(num_heads, size, size, dtype=torch.float64, device=view.q.device)
    gram_k = torch.zeros_like(gram_q)
    origin = view.k[:1].double().transpose(0, 1)  # [H, 1, D] keys that are all alike differ by 0
    total = torch.zeros_like(origin)
    for tile in token_tiles(view.num_tokens):
        q = view.q[tile].double().transpose(0, 1)
        k = view.k[tile].double().transpose(0, 1) - origin
        gram_q += q.mT @ q
        gram_k += k.mT @ k
        total += k.sum(1, keepdim=True)
        yield
    mean = total / view.num_tokens
    shift = origin.mT @ total
    whole = gram_k + shift + shift.mT + view.num_tokens * origin.mT @ origin
    return Grams(gram_q, whole, gram_k / view.num_tokens - mean.mT @ mean)
