"""|lambda_2| of long texts: iteration on the centred operator C P, C = I - 1 1^T / N.

C P has the spectrum of P with lambda_1 = 1 replaced by 0, so lambda_2 is its largest eigenvalue.

Blocks make a chain slow: mass lingers in a block until LLN or a sink carries it away, and there are
about as many eigenvalues just below one another as there are blocks. Random vectors resolve such a
cluster slowly. So where there are blocks the iteration starts from the eigenvectors of the chain
between groups of blocks, constant within each; a few passes then smooth them. Heads that stay
unsettled are finished by iterating the resolvent (s - P)^-1 with s just beyond what was found,
which tells any two eigenvalues apart.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from engine.diagnostics.arnoldi import Apply, BlockArnoldi, Ritz
from engine.diagnostics.heads import Heads
from engine.diagnostics.lapack import eigenpairs
from engine.diagnostics.resolvent import Resolvent
from engine.diagnostics.work import Work

BASIS_BYTES = 512 * 2**20
"""The Krylov bases held at once; passes end to stay below it."""

_WIDTH = 32
_RANDOM = 8
_BLOCK_PASSES = 4
_MAX_GROUPS = 128
_REFINED_WIDTH = 12
_REFINED_PASSES = 4
_REFINEMENTS = 3
_FLOAT64_BYTES = 8


class SecondModuli(NamedTuple):
    moduli: Tensor  # [H] float64
    errors: Tensor  # [H] float64


def second_moduli(heads: Heads) -> Work[SecondModuli]:
    """|lambda_2| of every head, with its error, which is at most 1: the modulus lies in [0, 1]."""
    operator = yield from heads.operator()
    start = yield from _start(heads)
    iteration = BlockArnoldi(_centred(operator), start, _max_passes(heads, start.shape[-1]))
    tolerance = heads.effort.tolerance
    while True:
        yield from iteration.extend()
        ritz = iteration.ritz()
        largest = ritz.values.abs().argmax(-1)
        errors = ritz.error_of(largest).nan_to_num(1.0).clamp_max(1.0)
        yield
        if bool((errors <= tolerance).all()) or iteration.passes == iteration.max_passes:
            break
    moduli = ritz.values.abs().gather(1, largest.unsqueeze(1)).squeeze(1)
    found = SecondModuli(moduli, errors)
    unsettled = (errors > tolerance).nonzero().flatten().tolist()
    if heads.blocks is None or not unsettled:
        return found
    order = ritz.values.abs().argsort(dim=1, descending=True)
    vectors = iteration.span(ritz, order, _REFINED_WIDTH)
    for head in unsettled:
        one = slice(head, head + 1)
        alone = Heads(heads.view.only([head]), heads.effort)
        coarse = SecondModuli(moduli[one], errors[one])
        moduli[one], errors[one] = yield from _refined(alone, coarse, vectors[one])
    return found


def _refined(heads: Heads, found: SecondModuli, vectors: Tensor) -> Work[SecondModuli]:
    """Iterate the resolvent just beyond the largest eigenvalue known, until none is beyond."""
    moduli, errors = found
    for _ in range(_REFINEMENTS):
        margin = (errors / 4).clamp(1e-4, 0.05)
        shifts = moduli + margin
        resolvent = Resolvent(heads, shifts.to(vectors))
        yield from resolvent.factorise()
        iteration = BlockArnoldi(_centred(resolvent.solve), vectors, _REFINED_PASSES)
        for _ in range(_REFINED_PASSES):
            yield from iteration.extend()
        ritz = iteration.ritz()
        near = ritz.values.abs().argsort(dim=1, descending=True)
        which = _largest_settled(ritz, shifts)
        value = shifts - 1 / ritz.values.gather(1, which.unsqueeze(1)).squeeze(1)
        # d lambda = d mu / mu^2
        wide = ritz.error_of(which) * (shifts - value).abs().square()
        better = wide < errors
        moduli = torch.where(better, value.abs(), moduli)
        errors = torch.where(better, wide, errors)
        vectors = iteration.span(ritz, near, _REFINED_WIDTH)
        if bool((errors <= heads.effort.tolerance).all()):
            break
    return SecondModuli(moduli, errors)


def _largest_settled(ritz: Ritz, shifts: Tensor) -> Tensor:
    """Of the eigenvalues that the resolvent has found, the one with the largest modulus: [H]."""
    inverse = ritz.values
    values = shifts.unsqueeze(1) - 1 / inverse
    is_settled = ritz.residuals <= 1e-3 * inverse.abs()
    nearest = inverse.abs().argmax(-1, keepdim=True)
    is_settled = is_settled.scatter(1, nearest, True)
    return torch.where(is_settled, values.abs(), -1.0).argmax(-1)


def _centred(apply: Apply) -> Apply:
    def centred(vectors: Tensor) -> Work[Tensor]:
        image = yield from apply(vectors)
        return image - image.mean(1, keepdim=True)

    return centred


def _start(heads: Heads) -> Work[Tensor]:
    """The first vectors: [H, N, width]."""
    width = min(_WIDTH, heads.num_tokens)
    generator = torch.Generator().manual_seed(heads.effort.seed)
    shape = (heads.num_tokens, width)
    random = torch.randn(shape, generator=generator, dtype=torch.float64)
    start: Tensor = torch.linalg.qr(random).Q.to(heads.view.q.device).repeat(heads.num_heads, 1, 1)
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
    values, vectors = eigenpairs(chain)
    order = values.abs().argsort(dim=1, descending=True)[:, 1 : count + 1]
    chosen = vectors.gather(2, order.unsqueeze(1).expand(-1, vectors.shape[1], -1))
    parts = torch.cat([chosen.real, chosen.imag], dim=2)
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
        if share is not None:
            diag = diag * (1 - blocks.rows(share.unsqueeze(-1), tile))
        rows = group[tile.start * blocks.width : tile.stop * blocks.width : blocks.width]
        own = diag[..., : blocks.width].sum((2, 3))  # [H, blocks]
        chain.diagonal(dim1=1, dim2=2).index_add_(1, rows, own)
        to_sinks = diag[..., blocks.width :].sum(2)  # [H, blocks, sinks]
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
