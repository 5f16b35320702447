"""The spectral gap 1 - |lambda_2| of a head's attention matrix, as a Markov chain over the tokens.

lambda_1 = 1 always; lambda_2 is the eigenvalue next in modulus, counted with multiplicity. A large
gap means that repeating the head mixes all tokens quickly; 0 means that some tokens never mix. A
single token has no second eigenvalue: its gap is 1 by convention.

- LLN: P = pi kappa has the non-zero spectrum of the D x D matrix kappa pi: exact, linear. Beside:
  the moduli of the leading eigenvalues.
- Block-diagonal, two or more blocks without sinks: 1 is an eigenvalue of every block, so the gap is
  0. Beside: the gaps of a few single blocks, of all blocks in mode "exact".
- Short texts: the dense eigenvalues, exact. Beside: the leading moduli.
- Otherwise iteration, linear but for softmax, with a stated error.

The iteration is block Arnoldi on the centred operator C P, C = I - 1 1^T / N. It has the spectrum
of P with lambda_1 = 1 replaced by 0, so lambda_2 is its largest eigenvalue. Blocks make a chain
slow: mass stays in a block until LLN or a sink carries it away, and there are about as many
eigenvalues close together as there are blocks. Random vectors resolve such a cluster slowly. So
with blocks, the iteration starts from the eigenvectors of the chain between groups of blocks,
constant within each group, besides random ones. A few passes of P look for the largest eigenvalue
anywhere; then the resolvent (s - P)^-1, with s just above 1, looks where the largest eigenvalue of
a chain with blocks is expected, since it magnifies most what is nearest to s. Heads that have not
converged continue with s just beyond the eigenvalue found, which tells any two eigenvalues apart.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from engine.diagnostics.head_group import HeadGroup
from engine.diagnostics.instrument import Instrument
from engine.diagnostics.linear_algebra import (
    Apply,
    BlockArnoldi,
    Ritz,
    eigenvalues,
    leading_parts,
    orthonormal,
)
from engine.diagnostics.operators import Resolvent
from engine.diagnostics.readings import Quantity, Reading, floats
from engine.diagnostics.rows import HeadRows
from engine.steps import Steps

NUM_EIGENVALUES = 8
NUM_BLOCKS = 4

BASIS_BYTES = 512 * 2**20
"""The most that Krylov bases take at once; it limits the number of passes."""

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
"""Residuals, relative to the eigenvalue, below which one counts as found, or as converging."""
_LEAST_DISTANCE = 1e-9
_SURE = 2
"""Two eigenvalues differ if they are this many errors apart: errors are first-order."""
_FLOAT64_BYTES = 8


def measure_spectral_gap(heads: HeadGroup) -> Steps[Reading]:
    """1 - |lambda_2| of every head."""
    if heads.num_tokens == 1:
        alone = torch.ones(heads.num_heads, 1, dtype=torch.float64)
        return _exactly(alone, "one token: 1 by convention", "1")
    if heads.is_isolated:
        return (yield from _of_blocks(heads))
    if heads.view.attention == "lln":
        factors = yield from heads.factors()
        return _exactly(
            _moduli(factors.chain), "exact: eigenvalues of the D x D channel chain", "N D^2 + D^3"
        )
    if heads.num_tokens <= heads.effort.max_dense_tokens:
        matrices = yield from _dense(heads)
        return _exactly(_moduli(matrices), "exact: eigenvalues of the N x N matrix", "N^3")
    found = yield from second_moduli(heads)
    return Reading(
        values=floats((1 - found.moduli).clamp(0.0, 1.0)),
        error=floats(found.errors),
        method="block Arnoldi; error: residual x condition number",
        unit=SPECTRAL_GAP.unit,
        cost="passes N^2" if heads.blocks is None else "N b (b + passes)",
    )


def _of_blocks(heads: HeadGroup) -> Steps[Reading]:
    assert heads.blocks is not None, "only blocks are isolated"
    count = heads.blocks.count
    chosen = range(count)
    if heads.effort.mode != "exact" and count > NUM_BLOCKS:
        chosen = range(0, count, -(-count // NUM_BLOCKS))
    gaps = []
    for block in chosen:
        size = min(heads.blocks.width, heads.num_tokens - block * heads.blocks.width)
        own = heads.blocks.weights(slice(block, block + 1))[:, 0, :size, :size]
        moduli = _moduli(own)
        gaps.append(1 - moduli[:, 1] if size > 1 else torch.ones_like(moduli[:, 1]))
        yield
    structural = torch.zeros(heads.num_heads, dtype=torch.float64)
    indices = torch.tensor(chosen).expand(heads.num_heads, -1)
    by_block = floats(torch.stack(gaps, dim=1).clamp(0.0, 1.0))
    return Reading(
        values=floats(structural),
        error=None,
        method=f"structural: {heads.blocks.count} blocks never mix",
        unit=SPECTRAL_GAP.unit,
        cost="N b^2",
        beside={
            "blocks": Quantity(values=floats(indices), unit="block index"),
            "by_block": Quantity(values=by_block, unit=SPECTRAL_GAP.unit),
        },
    )


def _dense(heads: HeadGroup) -> Steps[Tensor]:
    factors = (yield from heads.factors()) if heads.view.has_channels else None
    rows = torch.arange(heads.num_tokens, device=heads.view.q.device)
    return HeadRows(heads.view, factors, heads.blocks).full(rows)


def _moduli(matrices: Tensor) -> Tensor:
    """The leading moduli of stochastic matrices, padded with zeros: [H, 8]."""
    moduli = eigenvalues(matrices).abs()
    padded = torch.nn.functional.pad(moduli, (0, NUM_EIGENVALUES))
    return padded.topk(NUM_EIGENVALUES).values


def _exactly(moduli: Tensor, method: str, cost: str) -> Reading:
    second = moduli[:, 1] if moduli.shape[1] > 1 else torch.zeros(len(moduli), dtype=torch.float64)
    return Reading(
        values=floats((1 - second).clamp(0.0, 1.0)),  # rounding may take |lambda_2| beyond 1
        error=None,
        method=method,
        unit=SPECTRAL_GAP.unit,
        cost=cost,
        beside={"eigenvalue_moduli": Quantity(values=floats(moduli), unit=SPECTRAL_GAP.unit)},
    )


class SecondModuli(NamedTuple):
    moduli: Tensor  # [H] float64
    errors: Tensor  # [H] float64


class Found(NamedTuple):
    """The best estimate so far of the second eigenvalue of every head."""

    moduli: Tensor  # [H]
    errors: Tensor  # [H]
    vectors: Tensor  # [H, N, width] that span the eigenvectors nearest to it


def second_moduli(heads: HeadGroup) -> Steps[SecondModuli]:
    """|lambda_2| of every head, with its error, which is at most 1: the modulus lies in [0, 1]."""
    operator = yield from heads.operator()
    start = yield from _start(heads)
    passes = _max_passes(heads, start.shape[-1])
    moduli, errors, vectors = yield from _iterate(heads, _centred(operator), start, passes)
    if heads.blocks is None:
        return SecondModuli(moduli, errors)
    resolvent = yield from heads.resolvent()
    leading = yield from resolvent.leading(_NEAREST)
    wide = torch.cat([leading.to(start), start], dim=-1)[..., : start.shape[-1]]
    nearest = yield from _iterate_resolvent(heads, resolvent, wide, _INVERSE_PASSES)
    # The larger of two that surely differ, else the one with the smaller error.
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
        # In float64: what has not converged is often ill-conditioned.
        alone = HeadGroup(heads.view.only([head]), heads.effort, dtype=torch.float64)
        coarse = Found(moduli[one], errors[one], vectors[one])
        moduli[one], errors[one] = yield from _refine(alone, coarse)
    return SecondModuli(moduli, errors)


def _iterate(heads: HeadGroup, apply: Apply, start: Tensor, max_passes: int) -> Steps[Found]:
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


def _refine(heads: HeadGroup, found: Found) -> Steps[SecondModuli]:
    """Iterate the resolvent with a shift just beyond the largest eigenvalue known, until the error
    is below the tolerance."""
    moduli, errors, vectors = found
    for _ in range(_REFINEMENTS):
        margin = (errors / 4).clamp(1e-4, 0.05)
        resolvent = yield from heads.resolvent_at((moduli + margin).to(vectors.device))
        closer = yield from _iterate_resolvent(heads, resolvent, vectors, _REFINED_PASSES)
        better = closer.errors < errors
        moduli = torch.where(better, closer.moduli, moduli)
        errors = torch.where(better, closer.errors, errors)
        vectors = closer.vectors
        if bool((errors <= heads.effort.tolerance).all()):
            break
    return SecondModuli(moduli, errors)


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
        is_done = is_largest & (errors <= heads.effort.tolerance)
        if iteration.passes == iteration.max_passes or bool(is_done.all()):
            break
    order = ritz.values.abs().argsort(dim=1, descending=True)
    errors = errors.nan_to_num(1.0).clamp_max(1.0)
    return Found(value.abs(), errors, iteration.span(ritz, order, _REFINED_WIDTH))


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
    groups = yield from _group_vectors(heads, max(width - _RANDOM, 1))
    start[..., : groups.shape[-1]] = groups
    return start


def _group_vectors(heads: HeadGroup, count: int) -> Steps[Tensor]:
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


def _chain_between(heads: HeadGroup, group: Tensor) -> Steps[Tensor]:
    """The mean over a group's rows of the mass they send to each group: [H, groups, groups]."""
    assert heads.blocks is not None, "there are blocks to group"
    blocks, count = heads.blocks, int(group[-1]) + 1
    sizes = torch.bincount(group).double()
    chain = torch.zeros(heads.num_heads, count, count, dtype=torch.float64, device=group.device)
    share = heads.view.lln_share() if heads.view.has_channels else None
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


SPECTRAL_GAP = Instrument(
    name="spectral_gap",
    unit="dimensionless",
    description="1 - |second eigenvalue| of the attention matrix; 1 mixes at once, 0 never. "
    "Beside, where known exactly: the moduli of the leading eigenvalues, the gaps of blocks alone.",
    measure=measure_spectral_gap,
    max_softmax_tokens=2_048,
)
