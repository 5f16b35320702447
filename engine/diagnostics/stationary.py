"""Where a head's chain ends: the stationary distribution of P, and its heaviest tokens.

The value is its perplexity exp(H), the number of tokens that it is spread over as if evenly.
Beside: the tokens with the most mass, and their masses.

- LLN: stat(T) kappa with T = kappa pi, exact and linear.
- Kinds with blocks: two steps of inverse iteration at a shift just above 1, from the even
  distribution, then corrections by the resolvent until P changes the result by rounding alone. Of
  a chain that hardly mixes, more corrections might follow: then there is an error. If parts of the
  chain mix by less than rounding, the end depends on the start: a second start, at random, ends
  elsewhere, and the error is the whole range.
  Blocks that never mix have a stationary distribution each, weighted by their tokens.
- Softmax: the same with the LU factors of the whole matrix, a head at a time, of texts whose
  matrices are kept. Longer texts: power iteration. Its error is what the steps to come would move
  at the slowest rate of the last steps; for the perplexity, the most that so much mass can change
  an entropy (Fannes and Audenaert).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from engine.diagnostics.head_group import HeadGroup
from engine.diagnostics.instrument import Instrument
from engine.diagnostics.linear_algebra import Apply, one_thread
from engine.diagnostics.readings import Quantity, Reading, floats
from engine.steps import Steps

NUM_TOKENS = 8
_INVERSE_STEPS = 2
_CORRECTIONS = 60
_CLOSE, _GOOD, _STUCK = 1e-7, 2e-6, 0.9
_APART = {torch.float32: 1e-4, torch.float64: _GOOD}
"""Ends of two starts that are further apart are two ends; float32's rounding is magnified."""
_MAX_POWERS = 200
_NOISY_UNITS = 256
_STEADY = 1e-9
_RATE_STEPS = 10
_SHIFT = 1 + 1e-7


def measure_stationary(heads: HeadGroup) -> Steps[Reading]:
    moved: Tensor | None = None
    match heads.view.attention:
        case "lln":
            factors = yield from heads.factors()
            ends = _stationary_of(factors.chain).unsqueeze(1) @ factors.kappa
            found, method, cost = ends.squeeze(1), "exact: stat(kappa pi) kappa", "N D^2"
        case "softmax" if heads.has_matrix:
            found, moved = yield from _by_elimination(heads)
            method, cost = "exact: inverse iteration of the N x N matrix", "N^3"
        case "softmax":
            found, moved = yield from _by_powers(heads)
            method, cost = "power iteration; error: from the rate of the last steps", "steps N^2"
        case _:
            found, moved = yield from _by_inverse(heads)
            method, cost = "exact: inverse iteration, block by block", "N b^2"
    if moved is not None and method.startswith("exact"):
        if bool((moved <= _GOOD).all()):
            moved = None
        else:
            moved = moved.clamp_min(_GOOD)  # heads beside it are exact to that, and no error is 0
            method = f"{method[7:]}; error: from the rate of the last steps"
    top = found.topk(min(NUM_TOKENS, heads.num_tokens), dim=1)
    perplexity = torch.special.entr(found).sum(1).exp()
    error = of_top = None
    if moved is not None:
        error = floats(_perplexity_error(perplexity, moved, heads.num_tokens))
        of_top = floats((moved / 2).unsqueeze(1).expand_as(top.values))
    return Reading(
        values=floats(perplexity),
        error=error,
        method=method,
        unit=STATIONARY.unit,
        cost=cost,
        beside={
            "top_tokens": Quantity(values=floats(top.indices), unit="token index"),
            "top_mass": Quantity(values=floats(top.values), unit="probability", error=of_top),
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


def _by_inverse(heads: HeadGroup) -> Steps[tuple[Tensor, Tensor]]:
    found, moved = yield from _corrected(heads)
    if heads.dtype != torch.float64 and bool((moved > _GOOD).any()):
        # A chain that hardly mixes magnifies float32's rounding.
        precise = HeadGroup(heads.view, heads.effort, dtype=torch.float64)
        found, moved = yield from _corrected(precise)
    return found, moved


def _corrected(heads: HeadGroup) -> Steps[tuple[Tensor, Tensor]]:
    resolvent = yield from heads.resolvent()
    operator = yield from heads.operator()
    return (
        yield from _iterate(
            _starts(heads), operator.transposed, resolvent.solve_transposed, heads.dtype
        )
    )


def _noise(dtype: torch.dtype) -> float:
    """What a correction moves by rounding alone, at most."""
    return _NOISY_UNITS * torch.finfo(dtype).eps


def _by_elimination(heads: HeadGroup) -> Steps[tuple[Tensor, Tensor]]:
    matrices = yield from heads.matrix()
    ends, moved = [], []
    for matrix in torch.split(matrices, 1):
        shifted = matrix.mT.neg()
        shifted.diagonal(dim1=1, dim2=2).add_(_SHIFT)
        with one_thread():
            lu, pivots = torch.linalg.lu_factor(shifted)
        yield
        times, solve = _dense_steps(matrix, lu, pivots)
        found, still = yield from _iterate(_starts(heads)[:1], times, solve, torch.float64)
        ends.append(found)
        moved.append(still)
    return torch.cat(ends), torch.cat(moved)


def _dense_steps(matrix: Tensor, lu: Tensor, pivots: Tensor) -> tuple[Apply, Apply]:
    """P^T x and (s - P)^-T x."""

    def times(vectors: Tensor) -> Steps[Tensor]:
        yield
        return matrix.mT @ vectors

    def solve(vectors: Tensor) -> Steps[Tensor]:
        yield
        with one_thread():
            solved: Tensor = torch.linalg.lu_solve(lu, pivots, vectors)
        return solved

    return times, solve


def _iterate(
    starts: Tensor, times: Apply, solve: Apply, dtype: torch.dtype
) -> Steps[tuple[Tensor, Tensor]]:
    """The distributions where the first of the starts [H, N, 2] ends, and how much mass may still
    move: [H, N], [H]. `times` is P^T x, `solve` (s - P)^-T x, in `dtype`. A chain that hardly mixes
    approaches its end slowly: a step leaves the share that the distance from s to 1 has in the
    distance from s to the second eigenvalue."""
    found = starts
    for _ in range(_INVERSE_STEPS):
        found = _normalised((yield from solve(found)))
    moved = torch.full_like(found[:, 0, 0], torch.inf)
    changes: list[Tensor] = []
    for _ in range(_CORRECTIONS):
        last = moved
        change = (yield from times(found)) - found
        change -= found * change.sum(1, keepdim=True)  # rounding, which would be magnified the most
        following = _normalised(found + (yield from solve(change)))
        moved = (following - found).abs().sum(1).amax(1)
        changes.append(moved)
        found = following
        if bool(((moved <= _CLOSE) | (moved > _STUCK * last)).all()) and len(changes) > 1:
            break  # each step leaves a part of the error, down to rounding
    left = _left_by_corrections(torch.stack(changes), _noise(dtype))
    apart = (found[..., 0] - found[..., 1]).abs().sum(1)
    has_two_ends = apart > (4 * left).clamp_min(_APART[dtype])
    return found[..., 0], left.masked_fill(has_two_ends, 2.0)


def _left_by_corrections(changes: Tensor, noise: float) -> Tensor:
    """How much mass later corrections would move, of what each one moved [steps, H]: at the slowest
    rate of those that moved more than noise. Where a chain hardly mixes, each moves next to nothing
    and leaves nearly all."""
    before, after = changes[:-1], changes[1:]
    rates = torch.where(before > noise, after / before, 0.0)
    rate = rates.amax(0)
    rate = torch.where(rate > _STUCK, 1.0, rate)  # a slower part may only begin to show
    rest = changes[-1] * rate / (1 - rate)
    return torch.where(rest >= 0, rest, torch.inf).nan_to_num(nan=torch.inf).clamp_max(2.0)


def _by_powers(heads: HeadGroup) -> Steps[tuple[Tensor, Tensor]]:
    """The distributions, and how much mass may still move: [H, N], [H]."""
    operator = yield from heads.operator()
    found = _even(heads)
    changes: list[Tensor] = []
    for _ in range(_MAX_POWERS):
        following = _normalised((yield from operator.transposed(found.unsqueeze(-1)))[..., 0])
        changes.append((following - found).abs().sum(1))
        found = following
        if bool((changes[-1] <= _STEADY).all()):
            break
    return found, _still_to_move(torch.stack(changes[-_RATE_STEPS:]))


def _still_to_move(changes: Tensor) -> Tensor:
    """The sum of all later changes [H] if they shrink as slowly as the slowest of the last ones
    [steps, H]; at most 2, all mass twice."""
    tiny = torch.finfo(changes.dtype).tiny
    rate = (changes[1:] / changes[:-1].clamp_min(tiny)).amax(0) if len(changes) > 1 else 1.0
    rest = changes[-1] * rate / (1 - rate)
    return torch.where(rest >= 0, rest, torch.inf).nan_to_num(nan=torch.inf).clamp_max(2.0)


def _perplexity_error(perplexity: Tensor, moved: Tensor, num_tokens: int) -> Tensor:
    """The most that exp(H) changes if so much mass moves: never more than its whole range."""
    part = (moved / 2).clamp(0.0, 1 - 1 / num_tokens)
    both = torch.special.entr(part) + torch.special.entr(1 - part)
    entropy = both + part * math.log(max(num_tokens - 1, 1))
    return (perplexity * torch.expm1(entropy)).clamp_max(float(num_tokens - 1))


def _starts(heads: HeadGroup) -> Tensor:
    """The even distribution, and one at random if the chain has one end: [H, N, 2]."""
    even = _even(heads)
    if heads.is_isolated:  # blocks that never mix: the ends are those of the even distribution
        return torch.stack([even, even], dim=-1)
    at_random = torch.rand(
        heads.num_tokens, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    return torch.stack([even, _normalised(at_random.to(even.device).expand_as(even))], dim=-1)


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
