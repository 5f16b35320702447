"""Where a head's chain ends: the stationary distribution of P, and its heaviest tokens.

The value is its perplexity exp(H), the number of tokens that it is spread over as if evenly.
Beside: the tokens with the most mass, and their masses.

- LLN: stat(T) kappa with T = kappa pi, exact and linear.
- Kinds with blocks: two steps of inverse iteration at a shift just above 1, from the even
  distribution, then corrections by the resolvent until P changes the result by rounding alone.
  Blocks that never mix have a stationary distribution each, weighted by their tokens.
- Softmax: power iteration, with the distance of the last step as its error.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.diagnostics.head_group import HeadGroup
from engine.diagnostics.instrument import Instrument
from engine.diagnostics.readings import Floats, Quantity, Reading, floats
from engine.steps import Steps

NUM_TOKENS = 8
_INVERSE_STEPS = 2
_CORRECTIONS = 12
_CLOSE, _GOOD, _STUCK = 1e-7, 2e-6, 0.7
_MAX_POWERS = 200
_STEADY = 1e-9


def measure_stationary(heads: HeadGroup) -> Steps[Reading]:
    error: Floats | None = None
    match heads.view.attention:
        case "lln":
            factors = yield from heads.factors()
            ends = _stationary_of(factors.chain).unsqueeze(1) @ factors.kappa
            found, method, cost = ends.squeeze(1), "exact: stat(kappa pi) kappa", "N D^2"
        case "softmax":
            found, change = yield from _by_powers(heads)
            error = floats(change)
            method, cost = "power iteration; error: the last step, in mass", "steps N^2"
        case _:
            found = yield from _by_inverse(heads)
            method, cost = "exact: inverse iteration, block by block", "N b^2"
    top = found.topk(min(NUM_TOKENS, heads.num_tokens), dim=1)
    return Reading(
        values=floats(torch.special.entr(found).sum(1).exp()),
        error=error,
        method=method,
        unit=STATIONARY.unit,
        cost=cost,
        beside={
            "top_tokens": Quantity(values=floats(top.indices), unit="token index"),
            "top_mass": Quantity(values=floats(top.values), unit="probability"),
        },
    )


def _stationary_of(chains: Tensor) -> Tensor:
    """x T = x, sum x = 1, of small stochastic matrices, by least squares: [H, D]."""
    size = chains.shape[-1]
    identity = torch.eye(size, dtype=chains.dtype, device=chains.device)
    equations = torch.cat([chains.mT - identity, chains.new_ones(len(chains), 1, size)], dim=1)
    wanted = chains.new_zeros(len(chains), size + 1, 1)
    wanted[:, -1] = 1.0
    return _normalised((torch.linalg.pinv(equations) @ wanted).squeeze(-1))


def _by_inverse(heads: HeadGroup) -> Steps[Tensor]:
    found, moved = yield from _corrected(heads)
    if heads.dtype != torch.float64 and bool((moved > _GOOD).any()):
        # A chain that hardly mixes magnifies float32's rounding.
        precise = HeadGroup(heads.view, heads.effort, dtype=torch.float64)
        found, _ = yield from _corrected(precise)
    return found


def _corrected(heads: HeadGroup) -> Steps[tuple[Tensor, Tensor]]:
    """The distributions, and how much mass the last step moved: [H, N], [H]."""
    resolvent = yield from heads.resolvent()
    operator = yield from heads.operator()
    found = _even(heads)
    for _ in range(_INVERSE_STEPS):
        found = _normalised((yield from resolvent.solve_transposed(found.unsqueeze(-1)))[..., 0])
    moved = torch.full_like(found[:, 0], torch.inf)
    for _ in range(_CORRECTIONS):
        last = moved
        change = (yield from operator.transposed(found.unsqueeze(-1)))[..., 0] - found
        change -= found * change.sum(1, keepdim=True)  # rounding, which would be magnified the most
        step = (yield from resolvent.solve_transposed(change.unsqueeze(-1)))[..., 0]
        following = _normalised(found + step)
        moved = (following - found).abs().sum(1)
        found = following
        if bool(((moved <= _CLOSE) | (moved > _STUCK * last)).all()):
            break  # each step leaves a small part of the error, down to rounding
    return found, moved


def _by_powers(heads: HeadGroup) -> Steps[tuple[Tensor, Tensor]]:
    operator = yield from heads.operator()
    found = _even(heads)
    change = torch.ones_like(found[:, 0])
    for _ in range(_MAX_POWERS):
        following = _normalised((yield from operator.transposed(found.unsqueeze(-1)))[..., 0])
        change = (following - found).abs().sum(1)
        found = following
        if bool((change <= _STEADY).all()):
            break
    return found, change


def _even(heads: HeadGroup) -> Tensor:
    count = heads.num_tokens
    return torch.full(
        (heads.num_heads, count), 1 / count, dtype=torch.float64, device=heads.view.q.device
    )


def _normalised(masses: Tensor) -> Tensor:
    masses = masses.double().clamp_min(0.0)  # rounding
    return masses / masses.sum(1, keepdim=True)


STATIONARY = Instrument(
    name="stationary",
    unit="tokens",
    description="perplexity of the stationary distribution: over how many tokens the chain is "
    "spread at its end. Beside: the tokens it ends on, and their mass.",
    measure=measure_stationary,
    max_softmax_tokens=2_048,
)
