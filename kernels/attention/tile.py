"""One tile of a long sequence: its own rows, LLN's state of the whole, and the sinks outside it.

On a GPU a tile is one launch, unless a gradient is wanted: that comes from torch operations.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from kernels.attention import arguments, cpu, custom_op
from kernels.attention.arguments import AffineMap, ArgumentError, Gate, Map, RowsForm
from kernels.attention.block_softmax import OutsideSinks, block_softmax
from kernels.attention.functional import block_diagonal_attention, lln_read, softmax_attention
from kernels.attention.packed_sequences import Bounds, check_cu_seqlens
from kernels.attention.processor import widen
from kernels.attention.shares import token_shares
from kernels.attention.state import LLNState


class TileSinks(NamedTuple):
    """The sequence's sinks, as one tile sees them."""

    inside: tuple[int, int]
    """How many of the tile's own first and last rows are sinks."""
    k: Tensor  # [S, H, D] keys of the sinks outside the tile
    v: Tensor  # [S, H, D] their values


def block_diagonal_tile(
    q: Tensor, k: Tensor, v: Tensor, *, block_size: int, sinks: TileSinks
) -> Tensor:
    """Diag for one tile: softmax over the query's own block and all the sequence's sinks."""
    _check(q, k, v, sinks)
    if custom_op.runs_in_triton(q) and not custom_op.needs_gradient(q, k, v, sinks.k, sinks.v):
        return _in_triton(q, k, v, block_size=block_size, sinks=sinks)
    return _diag_in_torch(q, k, v, block_size, sinks).to(q.dtype)


def lln_diag_tile(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    state: LLNState,
    alpha: float | Tensor,
    mix: float | Tensor | Gate,
    mix_scale: float | Tensor | None = None,
    block_size: int,
    sinks: TileSinks,
    q_map: Map | None = None,
) -> Tensor:
    """mix * LLN + (1 - mix) * Diag for one tile, LLN read from the whole sequence's state."""
    rows = _check(q, k, v, sinks)
    checked_mix = arguments.check_mix_or_gate(mix, rows)
    factor = arguments.check_mix_scale(mix_scale, rows, 1)
    if custom_op.runs_in_triton(q):
        arguments.check_state(state, q, 1)
        scale = arguments.check_shared_scale("alpha", alpha, rows, 1)
        affine = arguments.check_map("q_map", q_map, rows)
        of_mix = checked_mix if isinstance(checked_mix, Gate) else (checked_mix,)
        given = (q, k, v, sinks.k, sinks.v, *state, *of_mix, factor, scale, *(affine or ()))
        if not custom_op.needs_gradient(*given):
            return _in_triton(
                *(q, k, v),
                state=state,
                alpha=scale,
                mix=checked_mix,
                mix_scale=factor,
                block_size=block_size,
                sinks=sinks,
                q_map=affine,
            )
    diag = _diag_in_torch(q, k, v, block_size, sinks)
    wide = widen(q)
    lln = lln_read(wide, state, alpha=alpha, q_map=q_map)
    shares = token_shares(wide, checked_mix, factor, check_cu_seqlens(None, q))
    return cpu.mix_branches(diag, lln, shares).to(q.dtype)


def lln_softmax_tile(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    cu_seqlens: Bounds,
    state: LLNState,
    alpha: float | Tensor,
    mix: float | Tensor | Gate,
    mix_scale: float | Tensor | None = None,
    q_map: Map | None = None,
) -> Tensor:
    """mix * LLN + (1 - mix) * softmax for some of a document's passages: softmax within each
    passage, LLN read from the whole document's state. `mix_scale` is that of each passage.

    On a GPU softmax is one launch, and the rest torch operations.
    """
    rows = arguments.check_rows(q=q, k=k, v=v)
    packed = check_cu_seqlens(cu_seqlens, q)
    checked_mix = arguments.check_mix_or_gate(mix, rows)
    factor = arguments.check_mix_scale(mix_scale, rows, packed.count)
    inside = softmax_attention(q, k, v, cu_seqlens=packed)
    wide = widen(q)
    lln = lln_read(wide, state, alpha=alpha, q_map=q_map)
    shares = token_shares(wide, checked_mix, factor, packed)
    return cpu.mix_branches(inside, lln, shares).to(q.dtype)


def _check(q: Tensor, k: Tensor, v: Tensor, sinks: TileSinks) -> RowsForm:
    rows = arguments.check_rows(q=q, k=k, v=v)
    arguments.check_rows(k=sinks.k, v=sinks.v)
    if len(sinks.k) and sinks.inside[1] > len(q):
        raise ArgumentError(f"a tile of {len(q)} rows cannot hold {sinks.inside[1]} sinks")
    return rows


def _in_triton(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    block_size: int,
    sinks: TileSinks,
    state: LLNState | None = None,
    alpha: Tensor | None = None,
    mix: Tensor | Gate | None = None,
    mix_scale: Tensor | None = None,
    q_map: AffineMap | None = None,
) -> Tensor:
    launched: Tensor = custom_op.triton_forward().tile_forward(
        *(q, k, v),
        cu_seqlens=check_cu_seqlens(None, q).cu_seqlens,
        state=state,
        alpha=alpha,
        mix=mix,
        mix_scale=mix_scale,
        block_size=arguments.check_block_size(block_size),
        num_sinks=arguments.check_sinks(sinks.inside),
        outside=(sinks.k, sinks.v),
        q_map=q_map,
    )
    return launched


def _diag_in_torch(q: Tensor, k: Tensor, v: Tensor, block_size: int, sinks: TileSinks) -> Tensor:
    if not len(sinks.k):
        return block_diagonal_attention(q, k, v, block_size=block_size, num_sinks=sinks.inside)
    with custom_op.without_autocast(q):
        return block_softmax(
            *(q, k, v),
            packed=check_cu_seqlens(None, q),
            block_size=arguments.check_block_size(block_size),
            sinks=arguments.check_sinks(sinks.inside),
            outside=OutsideSinks(sinks.k, sinks.v),
        )
