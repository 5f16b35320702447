"""The second eigenvalue of heads whose matrices are too large for all eigenvalues, by iteration.

Iteration is block Arnoldi on the centred operator C P, C = I - 1 1^T / N. It has the spectrum of P
with lambda_1 = 1 replaced by 0, so lambda_2 is its largest eigenvalue. It stops when the stated
error is a small part of the gap.

In long texts, blocks make a chain slow: mass stays in a block until LLN or a sink carries it away,
and there are about as many eigenvalues close together as there are blocks. Random vectors resolve
such a cluster slowly. So with blocks, the iteration starts from the eigenvectors of the chain
between groups of blocks, constant within each group, besides random ones. A few passes of P look
for the largest eigenvalue anywhere; then the resolvent (s - P)^-1, with s just above 1, looks where
the largest eigenvalue of a chain with blocks is expected, since it magnifies most what is nearest
to s. Heads that have not converged continue with s just beyond the eigenvalue found, which tells
any two eigenvalues apart. The stated error is the distance to an eigenvalue of P.

A head that attends to the token before has eigenvalues far from 1, in each of its blocks, and one
of them may be larger than all near 1. So random vectors are sent through every block by itself,
many times. Where they fade more slowly than the eigenvalue found near 1, the search goes on
anywhere, by block Arnoldi on P as for softmax. If that does not converge, the error is the gap
itself: what was found is an eigenvalue, so the gap is no larger, and none is below 0.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from engine.diagnostics.group_vectors import group_vectors
from engine.diagnostics.head_group import HeadGroup
from engine.diagnostics.linear_algebra import (
    Apply,
    BlockArnoldi,
    Ritz,
    orthonormal,
)
from engine.diagnostics.operators import Resolvent
from engine.steps import Steps

BASIS_BYTES = 512 * 2**20
"""The most that Krylov bases take at once; it limits the number of passes."""

_WIDTH = 32
_RANDOM = 8
_BLOCK_WIDTH = 16
_NEAREST = 10
_BLOCK_PASSES = 2
_INVERSE_PASSES = 8
_DENSE_WIDTH = 8
_GROWTH = 1.4
_LEAST_ERROR = 1e-9
"""Errors below this need not shrink further, however small the gap."""
_REFINED_WIDTH = 12
_REFINED_PASSES = 4
_REFINEMENTS = 3
_FADING_WIDTH = 2
_FADING_POWERS = 32
_SUSPICIOUS = 1.5
"""Blocks may have a larger eigenvalue if what fades in them does so in less than this many times
the gap found near 1: powers tell moduli roughly."""
_SETTLED, _COMING = 1e-3, 0.5
"""Residuals, relative to the eigenvalue, below which one counts as found, or as converging."""
_LEAST_DISTANCE = 1e-9
_SURE = 2
"""Two eigenvalues differ if they are this many errors apart: errors are first-order."""
_FLOAT64_BYTES = 8


class SecondEigenvalues(NamedTuple):
    values: Tensor  # [H] complex128
    errors: Tensor  # [H] float64


class Found(NamedTuple):
    """The best estimate so far of the second eigenvalue of every head."""

    values: Tensor  # [H] complex128
    errors: Tensor  # [H]
    vectors: Tensor  # [H, N, width] that span the eigenvectors nearest to it


def second_eigenvalues(heads: HeadGroup) -> Steps[SecondEigenvalues]:
    """lambda_2 of every head, with the error of its modulus, which is at most 1."""
    if heads.has_matrix:
        return (yield from _of_matrices(heads))
    operator = yield from heads.operator()
    start = yield from _start(heads)
    passes = _max_passes(heads, start.shape[-1])
    found = yield from _iterate(heads, _centred(operator), start, passes)
    if heads.blocks is None:
        return SecondEigenvalues(found.values, found.errors)
    resolvent = yield from heads.resolvent()
    leading = yield from resolvent.leading(_NEAREST)
    wide = torch.cat([leading.to(start), start], dim=-1)[..., : start.shape[-1]]
    nearest = yield from _iterate_resolvent(heads, resolvent, wide, _INVERSE_PASSES)
    found = _better(found, nearest)
    values, errors, vectors = found
    for head in (~_is_close(heads, values, errors)).nonzero().flatten().tolist():
        one = slice(head, head + 1)
        # In float64: what has not converged is often ill-conditioned.
        alone = HeadGroup(heads.view.only([head]), heads.effort, dtype=torch.float64)
        coarse = Found(values[one], errors[one], vectors[one])
        values[one], errors[one] = yield from _refine(alone, coarse)
    gaps = 1 - values.abs()
    fading = yield from _fading_in_blocks(heads)
    for head in (1 - fading < _SUSPICIOUS * gaps).nonzero().flatten().tolist():
        one = slice(head, head + 1)
        near_one = SecondEigenvalues(values[one], errors[one])
        values[one], errors[one] = yield from _search_anywhere(heads, head, near_one)
    return SecondEigenvalues(values, errors)


def _fading_in_blocks(heads: HeadGroup) -> Steps[Tensor]:
    """How slowly what differs within a block fades there, by how much of it is left after a power
    of the block: a modulus, the largest over all blocks, [H] on the host."""
    blocks = heads.blocks
    assert blocks is not None, "there are blocks to look at"
    generator = torch.Generator().manual_seed(heads.effort.seed)
    random = torch.randn(blocks.width, _FADING_WIDTH, generator=generator, dtype=torch.float64)
    random = random.to(heads.view.q.device, heads.dtype)
    share = heads.view.lln_share().unsqueeze(-1) if heads.view.has_channels else None
    slowest = torch.zeros(heads.num_heads, dtype=torch.float64)
    for tile, diag in heads.diag_tiles():
        own = diag[..., : blocks.width]
        if share is not None:
            own = own * (1 - blocks.rows(share, tile)).to(own)
        vectors, sizes = random.expand(*own.shape[:2], -1, -1), []
        for power in range(1, _FADING_POWERS + 1):
            vectors = own @ vectors
            vectors = vectors - vectors.mean(2, keepdim=True)
            if power in (_FADING_POWERS // 2, _FADING_POWERS):
                sizes.append(vectors.norm(dim=(2, 3)).double())
        half, whole = sizes
        left = (whole / half.clamp_min(torch.finfo(torch.float64).tiny)).clamp_max(1.0)
        moduli = left.pow(2 / _FADING_POWERS).amax(1)
        slowest = slowest.maximum(moduli.cpu())
        yield
    return slowest


def _search_anywhere(
    heads: HeadGroup, head: int, near_one: SecondEigenvalues
) -> Steps[SecondEigenvalues]:
    """The second eigenvalue of one head whose blocks may have a larger one than that near 1."""
    alone = HeadGroup(heads.view.only([head]), heads.effort, dtype=torch.float64)
    operator = yield from alone.operator()
    generator = torch.Generator().manual_seed(heads.effort.seed)
    start = torch.randn(1, heads.num_tokens, _BLOCK_WIDTH, generator=generator, dtype=torch.float64)
    passes = _passes_of(start, heads.effort.max_basis // _BLOCK_WIDTH)
    found = yield from _iterate(alone, _centred(operator), start.to(heads.view.q.device), passes)
    values, errors, _ = found
    is_close = _is_close(heads, values, errors)
    is_larger = is_close & (values.abs() > near_one.values.abs())
    values = torch.where(is_larger, values, near_one.values)
    gaps = (1 - values.abs()).clamp_min(0.0)
    known = torch.where(is_larger, errors, near_one.errors)
    return SecondEigenvalues(values, torch.where(is_close, known, known.maximum(gaps)))


def _of_matrices(heads: HeadGroup) -> Steps[SecondEigenvalues]:
    """From the dense matrices, a head at a time: some converge at once, some hardly."""
    matrices = yield from heads.matrix()
    width = min(_DENSE_WIDTH, heads.num_tokens)
    generator = torch.Generator().manual_seed(heads.effort.seed)
    random = torch.randn(heads.num_tokens, width, generator=generator, dtype=torch.float64)
    start = random.to(matrices.device).unsqueeze(0)
    passes = max(1, min(heads.effort.max_basis, heads.num_tokens - width) // width)
    values, errors = [], []
    for matrix in torch.split(matrices, 1):
        found = yield from _iterate(heads, _centred(_times(matrix)), start, passes)
        values.append(found.values)
        errors.append(found.errors)
    return SecondEigenvalues(torch.cat(values), torch.cat(errors))


def _times(matrix: Tensor) -> Apply:
    def times(vectors: Tensor) -> Steps[Tensor]:
        yield
        return matrix @ vectors

    return times


def _better(one: Found, other: Found) -> Found:
    """The larger eigenvalue of two that surely differ, else the one with the smaller error."""
    moduli, others = one.values.abs(), other.values.abs()
    is_better = torch.where(
        (others - moduli).abs() > _SURE * (other.errors + one.errors),
        others > moduli,
        other.errors <= one.errors,
    )
    # Eigenvalues are found on the host, the vectors stay on the device.
    chosen = is_better.to(one.vectors.device).view(-1, 1, 1)
    return Found(
        torch.where(is_better, other.values, one.values),
        torch.where(is_better, other.errors, one.errors),
        torch.where(chosen, other.vectors, one.vectors),
    )


def _is_close(heads: HeadGroup, values: Tensor, errors: Tensor) -> Tensor:
    """Whether the error is small beside the gap: [H]."""
    gaps = (1 - values.abs()).clamp_min(0.0)
    return errors <= (heads.effort.tolerance * gaps).clamp_min(_LEAST_ERROR)


def _iterate(heads: HeadGroup, apply: Apply, start: Tensor, max_passes: int) -> Steps[Found]:
    """The largest eigenvalue of the operator."""
    iteration = BlockArnoldi(apply, start, max_passes)
    looked_at = 0
    while True:
        yield from iteration.extend()
        # Looking costs the cube of the basis.
        if iteration.passes < min(max_passes, _GROWTH * looked_at):
            continue
        looked_at = iteration.passes
        ritz = iteration.ritz()
        largest = ritz.values.abs().argmax(-1)
        values = ritz.values.gather(1, largest.unsqueeze(1)).squeeze(1)
        errors = ritz.error_of(largest).nan_to_num(1.0).clamp_max(1.0)
        yield
        if bool(_is_close(heads, values, errors).all()) or iteration.passes == max_passes:
            break
    order = ritz.values.abs().argsort(dim=1, descending=True)
    return Found(values, errors, iteration.span(ritz, order, _REFINED_WIDTH))


def _refine(heads: HeadGroup, found: Found) -> Steps[SecondEigenvalues]:
    """Iterate the resolvent with a shift just beyond the largest eigenvalue known, until the error
    is small beside the gap."""
    values, errors, vectors = found
    for _ in range(_REFINEMENTS):
        margin = (errors / 4).clamp(1e-4, 0.05)
        resolvent = yield from heads.resolvent_at((values.abs() + margin).to(vectors.device))
        closer = yield from _iterate_resolvent(heads, resolvent, vectors, _REFINED_PASSES)
        better = closer.errors < errors
        values = torch.where(better, closer.values, values)
        errors = torch.where(better, closer.errors, errors)
        vectors = closer.vectors
        if bool(_is_close(heads, values, errors).all()):
            break
    return SecondEigenvalues(values, errors)


def _iterate_resolvent(
    heads: HeadGroup, resolvent: Resolvent, start: Tensor, max_passes: int
) -> Steps[Found]:
    """The eigenvalue of the largest modulus among those near the resolvent's shift."""
    shifts = resolvent.shifts.cpu()
    start = start.to(heads.dtype)
    # The eigenvalue 1 is magnified the most; centring removes it, but not its rounding.
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
        is_done = is_largest & _is_close(heads, value, errors)
        if iteration.passes == iteration.max_passes or bool(is_done.all()):
            break
    order = ritz.values.abs().argsort(dim=1, descending=True)
    errors = errors.nan_to_num(1.0).clamp_max(1.0)
    return Found(value, errors, iteration.span(ritz, order, _REFINED_WIDTH))


def _largest_settled(ritz: Ritz, shifts: Tensor) -> tuple[Tensor, Tensor]:
    """The eigenvalue found by the resolvent with the largest modulus, and whether none that is
    still converging may be larger: [H] twice."""
    inverse = ritz.values
    moduli = (shifts.unsqueeze(1) - 1 / inverse).abs()
    moduli = moduli.masked_fill(moduli > 1 + _SETTLED, 0.0)  # removed by C: no eigenvalue of P
    is_settled = ritz.residuals <= _SETTLED * inverse.abs()
    nearest = inverse.abs().argmax(-1, keepdim=True)
    is_settled = is_settled.scatter(1, nearest, True)
    which = torch.where(is_settled, moduli, -1.0).argmax(-1)
    is_coming = ritz.residuals <= _COMING * inverse.abs()
    candidates = torch.where(is_coming | is_settled, moduli, -1.0)
    return which, candidates.argmax(-1) == which


def _centred(apply: Apply) -> Apply:
    def centred(vectors: Tensor) -> Steps[Tensor]:
        image = yield from apply(vectors)
        return image - image.mean(1, keepdim=True)

    return centred


def _start(heads: HeadGroup) -> Steps[Tensor]:
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
    groups = yield from group_vectors(heads, max(width - _RANDOM, 1))
    start[..., : groups.shape[-1]] = groups
    return start


def _max_passes(heads: HeadGroup, width: int) -> int:
    """As many as are worthwhile, but no more than the dimensions of the space and BASIS_BYTES."""
    vector_bytes = heads.num_tokens * heads.num_heads * _FLOAT64_BYTES
    in_memory = BASIS_BYTES // (width * vector_bytes) - 1
    worth = _BLOCK_PASSES if heads.blocks is not None else heads.effort.max_basis // width
    return max(1, min(worth, (heads.num_tokens - width) // width, in_memory))


def _passes_of(start: Tensor, wanted: int) -> int:
    """As many as wanted, but no more than the dimensions of the space and BASIS_BYTES."""
    _, tokens, width = start.shape
    in_memory = BASIS_BYTES // start.nbytes - 1
    return max(1, min(wanted, tokens // width - 1, in_memory))
