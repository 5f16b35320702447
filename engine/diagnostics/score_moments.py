"""Moments of queries, keys and scores, in linear time, and what they tell of rows of softmax."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from engine.diagnostics.head_view import HeadView, token_tiles
from engine.steps import Steps

_LONGEST_KEYS = 128


class Grams(NamedTuple):
    """Second moments of queries and keys."""

    q: Tensor  # [H, D, D] Q^T Q
    k: Tensor  # [H, D, D] K^T K
    k_covariance: Tensor  # [H, D, D]


def grams_of(view: HeadView) -> Steps[Grams]:
    shape = (view.num_heads, view.head_size, view.head_size)
    gram_q = torch.zeros(shape, dtype=torch.float64, device=view.q.device)
    gram_k = torch.zeros_like(gram_q)
    # Less the first key: keys that are all alike have a covariance of exactly 0.
    origin = view.k[:1].double().transpose(0, 1)  # [H, 1, D]
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


def score_variances_of(view: HeadView) -> Steps[Tensor]:
    """Var_j(q_i . k_j / sqrt(D)) of every row: [H, N]."""
    q, k = (x.double().transpose(0, 1) for x in (view.q, view.k))
    yield
    centred = k - k.mean(1, keepdim=True)
    covariance = centred.mT @ centred * (view.scale**2 / view.num_tokens)
    variances: Tensor = torch.linalg.vecdot(q @ covariance, q)
    return variances


def guess_collisions(view: HeadView, variances: Tensor) -> Steps[Tensor]:
    """Every row's collision if the scores of all but the longest keys were Gaussian: [H, N]."""
    k = view.k.double().transpose(0, 1)
    k = k - k.mean(1, keepdim=True)  # shifts no row's distribution
    num_keys = min(_LONGEST_KEYS, view.num_tokens)
    longest = k.norm(dim=-1).topk(num_keys, dim=1).indices
    keys = k.gather(1, longest.unsqueeze(-1).expand(-1, -1, view.head_size)) * view.scale
    found = []
    for tile in token_tiles(view.num_tokens):
        scores = view.q[tile].double().transpose(0, 1) @ keys.mT
        if num_keys < view.num_tokens:
            mass = variances[:, tile] / 2 + math.log(view.num_tokens - num_keys)
            scores = torch.cat([scores, mass.unsqueeze(-1)], dim=-1)
        found.append(scores.softmax(-1)[..., :num_keys].square().sum(-1))
        yield
    return torch.cat(found, dim=1)
