"""|lambda_2| of long texts: iteration on the centred operator C P, C = I - 1 1^T / N.

C P has the spectrum of P with lambda_1 = 1 replaced by 0, so lambda_2 is its largest eigenvalue.

Blocks make a chain slow: mass lingers in a block until LLN or a sink carries it away, and there are
about as many eigenvalues just below one another as there are blocks. Random vectors resolve such a
cluster slowly. So where there are blocks the iteration starts from the eigenvectors of the chain
between groups of blocks, constant within each, beside random ones, and goes on with the resolvent
(s - P)^-1: what it magnifies most is nearest to s, which is just above 1, where the largest
eigenvalue of a chain with blocks is to be expected. A few passes of P itself look for one that is
as large elsewhere. Heads that stay unsettled are finished with s just beyond what was found, which
tells any two eigenvalues apart.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from engine.diagnostics.arnoldi import Apply, BlockArnoldi, Ritz
from engine.diagnostics.heads import Heads
from engine.diagnostics.lapack import leading_parts
from engine.diagnostics.orthonormal import orthonormal
from engine.diagnostics.resolvent import Resolvent
from engine.diagnostics.work import Work

BASIS_BYTES = 512 * 2**20
"""The Krylov bases held at once; passes end to stay below it."""

_WIDTH = 32
_RANDOM = 8
_BLOCK_WIDTH = 16
_NEAREST = 10
_BLOCK_PASSES = 2
_INVERSE_PASSES = 8
_MAX_GROUPS = 128
_REFINED_WIDTH = 12
_REFINED_PASSES = 4
_REFINEMENTS = 3
_SETTLED, _COMING = 1e-3, 0.5
"""Residuals, relative to the eigenvalue, of those that count as found, and as on their way."""
_LEAST_DISTANCE = 1e-9
_SURE = 2
"""Errors that eigenvalues are apart to be surely two: large ones are but first-order guesses."""
_FLOAT64_BYTES = 8


class SecondModuli(NamedTuple):
    moduli: Tensor  # [H] float64
    errors: Tensor  # [H] float64


class Found(NamedTuple):
    """The second eigenvalue of every head as far as it is known."""

    moduli: Tensor  # [H]
    errors: Tensor  # [H]
    vectors: Tensor  # [H, N, width] which span what is nearest to it


def second_moduli(heads: Heads) -> Work[SecondModuli]:
    """|lambda_2| of every head, with its error, which is at most 1: the modulus lies in [0, 1]."""
    operator = yield from heads.operator()
    start = yield from _start(heads)
    passes = _max_passes(heads, start.shape[-1])
    moduli, errors, vectors = yield from _iterated(heads, _centred(operator), start, passes)
    if heads.blocks is None:
        return SecondModuli(moduli, errors)
    resolvent = yield from heads.resolvent()
    leading = yield from resolvent.leading(_NEAREST)
    wide = torch.cat([leading.to(start), start], dim=-1)[..., : start.shape[-1]]
    nearest = yield from _inverted(heads, resolvent, wide, _INVERSE_PASSES)
    # Whichever is surely the larger one of two that are known, or else the one known better.
    is_better = torch.where(
        (nearest.moduli - moduli).abs() > _SURE * (nearest.errors + errors),
        nearest.moduli > moduli,
        nearest.errors <= errors,
    )
    moduli = torch.where(is_better, nearest.moduli, moduli)
    errors = torch.where(is_better, nearest.errors, errors)
    # Eigenvalues are found on the host, the vectors stay on the device.
    chosen = is_better.to(vectors.device).view(-1, 1, 1)
    vectors = torch.where(chosen, nearest.vectors, vectors)
    for head in (errors > heads.effort.tolerance).nonzero().flatten().tolist():
        one = slice(head, head + 1)
        # In float64: what has not settled is often ill-conditioned.
        alone = Heads(heads.view.only([head]), heads.effort, dtype=torch.float64)
        coarse = Found(moduli[one], errors[one], vectors[one])
        moduli[one], errors[one] = yield from _refined(alone, coarse)
    return SecondModuli(moduli, errors)


def _iterated(heads: Heads, apply: Apply, start: Tensor, max_passes: int) -> Work[Found]:
    """The largest eigenvalue of the operator."""
    iteration = BlockArnoldi(apply, start, max_passes)
    while True:
        yield from iteration.extend()
        ritz = iteration.ritz()
        largest = ritz.values.abs().argmax(-1)
        errors = ritz.error_of(largest).nan_to_num(1.0).clamp_max(1.0)
        yield
        if bool((errors <= heads.effort.tolerance).all()) or iteration.passes == max_passes:
            break
    order = ritz.values.abs().argsort(dim=1, descending=True)
    moduli = ritz.values.abs().gather(1, largest.unsqueeze(1)).squeeze(1)
    return Found(moduli, errors, iteration.span(ritz, order, _REFINED_WIDTH))


def _refined(heads: Heads, found: Found) -> Work[SecondModuli]:
    """Iterate the resolvent just beyond the largest eigenvalue known, until none is beyond."""
    moduli, errors, vectors = found
    for _ in range(_REFINEMENTS):
        margin = (errors / 4).clamp(1e-4, 0.05)
        resolvent = Resolvent(heads, (moduli + margin).to(vectors.device))
        yield from resolvent.factorise(heads)
        closer = yield from _inverted(heads, resolvent, vectors, _REFINED_PASSES)
        better = closer.errors < errors
        moduli = torch.where(better, closer.moduli, moduli)
        errors = torch.where(better, closer.errors, errors)
        vectors = closer.vectors
        if bool((errors <= heads.effort.tolerance).all()):
            break
    return SecondModuli(moduli, errors)


def _inverted(heads: Heads, resolvent: Resolvent, start: Tensor, max_passes: int) -> Work[Found]:
    """The eigenvalue of the largest modulus among those near the resolvent's shift."""
    shifts = resolvent.shifts.cpu()
    start = start.to(heads.dtype)
    # What belongs to the eigenvalue 1 is magnified the most; centring leaves its rounding.
    to_one = float((shifts - 1).abs().clamp_min(_LEAST_DISTANCE).min())
    noise = torch.finfo(heads.dtype).eps / to_one
    passes = _passes_of(start, max_passes)
    iteration = BlockArnoldi(_centred(resolvent.solve), start, passes, noise)
    while True:
        yield from iteration.extend()
        ritz = iteration.ritz()
        which, is_largest = _largest_settled(ritz, shifts)
        value = shifts - 1 / ritz.values.gather(1, which.unsqueeze(1)).squeeze(1)
        # d lambda = d mu / mu^2
        errors = ritz.error_of(which) * (shifts - value).abs().square()
        yield
        is_done = is_largest & (errors <= heads.effort.tolerance)
        if iteration.passes == iteration.max_passes or bool(is_done.all()):
            break
    order = ritz.values.abs().argsort(dim=1, descending=True)
    errors = errors.nan_to_num(1.0).clamp_max(1.0)
    return Found(value.abs(), errors, iteration.span(ritz, order, _REFINED_WIDTH))


def _largest_settled(ritz: Ritz, shifts: Tensor) -> tuple[Tensor, Tensor]:
    """Of the eigenvalues that the resolvent has found, the one with the largest modulus; and
    whether none that is still on its way might be larger: [H] twice."""
    inverse = ritz.values
    moduli = (shifts.unsqueeze(1) - 1 / inverse).abs()
    moduli = moduli.masked_fill(moduli > 1 + _SETTLED, 0.0)  # what C took away: no eigenvalue of P
    is_settled = ritz.residuals <= _SETTLED * inverse.abs()
    nearest = inverse.abs().argmax(-1, keepdim=True)
    is_settled = is_settled.scatter(1, nearest, True)
    which = torch.where(is_settled, moduli, -1.0).argmax(-1)
    is_coming = ritz.residuals <= _COMING * inverse.abs()
    candidates = torch.where(is_coming | is_settled, moduli, -1.0)
    return which, candidates.argmax(-1) == which


def _centred(apply: Apply) -> Apply:
    def centred(vectors: Tensor) -> Work[Tensor]:
        image = yield from apply(vectors)
        return image - image.mean(1, keepdim=True)

    return centred


def _start(heads: Heads) -> Work[Tensor]:
    """The first vectors: [H, N, width]."""
    width = _WIDTH if heads.blocks is None else _BLOCK_WIDTH
    if heads.num_tokens < 2 * width:
        width = heads.num_tokens  # all of the space at once
    generator = torch.Generator().manual_seed(heads.effort.seed)
    shape = (heads.num_tokens, width)
    random = torch.randn(shape, generator=generator, dtype=torch.float64)
    first = orthonormal(random)[0].to(heads.view.q.device, heads.dtype)
    start: Tensor = first.repeat(heads.num_heads, 1, 1)
    if heads.blocks is None or heads.blocks.count <= 2:
        return start
    groups = yield from _group_vectors(heads, max(width - _RANDOM, 1))
    start[..., : groups.shape[-1]] = groups
    return start


def _group_vectors(heads: Heads, count: int) -> Work[Tensor]:
    """The leading eigenvectors of the chain between groups of blocks, constant in each group."""
    assert heads.blocks is not None, "there are blocks to group"
    blocks_a_group = -(-heads.blocks.count // _MAX_GROUPS)
    tokens = torch.arange(heads.num_tokens, device=heads.view.q.device)
    group = tokens // (heads.blocks.width * blocks_a_group)
    chain = yield from _chain_between(heads, group)
    parts = leading_parts(chain, slice(1, count + 1))
    leading = torch.linalg.svd(parts, full_matrices=False).U[..., :count].to(heads.view.q.device)
    by_token: Tensor = leading[:, group]
    return by_token


def _chain_between(heads: Heads, group: Tensor) -> Work[Tensor]:
    """The mean over a group's rows of the mass they send to each group: [H, groups, groups]."""
    assert heads.blocks is not None, "there are blocks to group"
    blocks, count = heads.blocks, int(group[-1]) + 1
    sizes = torch.bincount(group).double()
    chain = torch.zeros(heads.num_heads, count, count, dtype=torch.float64, device=group.device)
    share = heads.mix() if heads.view.has_channels else None
    for tile, diag in heads.diag_tiles():
        rows = group[tile.start * blocks.width : tile.stop * blocks.width : blocks.width]
        by_row = diag[..., : blocks.width].sum(-1, keepdim=True)
        parts = torch.cat([by_row, diag[..., blocks.width :]], dim=-1).double()
        if share is not None:
            parts *= 1 - blocks.rows(share.unsqueeze(-1), tile)
        own, to_sinks = parts[..., 0].sum(2), parts[..., 1:].sum(2)  # [H, blocks, ...]
        chain.diagonal(dim1=1, dim2=2).index_add_(1, rows, own)
        for sink, position in enumerate(blocks.sinks.tolist()):
            chain[:, :, int(group[position])].index_add_(1, rows, to_sinks[..., sink])
        yield
    if share is not None:
        factors = yield from heads.factors()
        size = heads.view.head_size
        leaving = chain.new_zeros(heads.num_heads, count, size)
        leaving.index_add_(1, group, factors.pi * share.unsqueeze(-1))
        arriving = torch.zeros_like(leaving).index_add_(1, group, factors.kappa.mT.contiguous())
        chain += leaving @ arriving.mT
    return chain / sizes.view(1, -1, 1)


def _max_passes(heads: Heads, width: int) -> int:
    """As many as are worth it, the space has dimensions for and the basis may hold."""
    vector_bytes = heads.num_tokens * heads.num_heads * _FLOAT64_BYTES
    in_memory = BASIS_BYTES // (width * vector_bytes) - 1
    worth = _BLOCK_PASSES if heads.blocks is not None else heads.effort.max_basis // width
    return max(1, min(worth, (heads.num_tokens - width) // width, in_memory))


def _passes_of(start: Tensor, wanted: int) -> int:
    """No more than the space has dimensions for and the basis may hold."""
    _, tokens, width = start.shape
    in_memory = BASIS_BYTES // start.nbytes - 1
    return max(1, min(wanted, tokens // width - 1, in_memory))
