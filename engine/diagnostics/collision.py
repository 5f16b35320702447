"""The mean of a head's row collisions, sum_j P_ij^2: how often two draws of a row meet.

Exact and linear for every kind but softmax. There a few sharp rows may hold most of it, and a
sample of even rows that happens to miss them would not even know that it erred. So every row is
looked at through the few longest keys, which is linear; those that look sharpest are always read,
and a sample stands for the rest.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from engine.diagnostics.factors import token_tiles
from engine.diagnostics.heads import Heads
from engine.diagnostics.statistics import Estimate, mean_of
from engine.diagnostics.work import Work, shared

NUM_SHARPEST = 64
_LONGEST_KEYS = 128


@shared
def mean_collision(heads: Heads) -> Work[Estimate]:
    collisions = yield from heads.collisions()
    if heads.view.attention != "softmax" or heads.reads_all_rows:
        return mean_of(collisions, heads.num_tokens)
    guesses = yield from _guesses(heads)
    sharpest = guesses.topk(min(NUM_SHARPEST, heads.num_tokens), dim=1).indices  # [H, rows]
    of_sharpest = yield from _collisions_of(heads, sharpest)
    rows = (yield from heads.rows()).rows
    found = [
        _of_strata(collisions[head], of_sharpest[head], rows, sharpest[head], guesses[head])
        for head in range(heads.num_heads)
    ]
    values, errors = (torch.cat(parts) for parts in zip(*found, strict=True))
    return Estimate(values, errors)


def _collisions_of(heads: Heads, rows: Tensor) -> Work[Tensor]:
    """Of rows [H, rows], of every head its own."""
    view = heads.view
    reader = yield from heads.row_reader()
    index = rows.unsqueeze(-1).expand(-1, -1, view.head_size)
    queries = view.q.transpose(0, 1).gather(1, index).to(reader.dtype) * view.scale
    found = []
    for few in torch.split(queries, 1, dim=1):
        p = torch.bmm(few, reader.keys).softmax(-1)
        found.append(torch.linalg.vecdot(p, p).double())
        yield
    return torch.cat(found, dim=1)


def _guesses(heads: Heads) -> Work[Tensor]:
    """Every row's collision, as if the scores of all but the longest keys were Gaussian: [H, N]."""
    view = heads.view
    variances = yield from heads.score_variances()
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


def _of_strata(
    sampled: Tensor, of_sharpest: Tensor, rows: Tensor, sharpest: Tensor, guesses: Tensor
) -> tuple[Tensor, Tensor]:
    """One head's mean over all rows and its standard error: [1] each. The guesses explain part of
    how rows differ."""
    population = len(guesses)
    is_rest = torch.ones(population, dtype=torch.bool, device=rows.device)
    is_rest[sharpest] = False
    others = is_rest[rows]
    guess = guesses[is_rest].mean().unsqueeze(0)
    rest = Estimate(guess, guess)  # where the sample has none of them
    if bool(others.any()):
        known = guesses[rows[others]].unsqueeze(0), guess
        rest = mean_of(sampled[others].unsqueeze(0), int(is_rest.sum()), [known])
    share = 1 - len(sharpest) / population
    values = of_sharpest.sum() / population + share * rest.values
    error = torch.zeros_like(values) if rest.error is None else share * rest.error
    return values, error
