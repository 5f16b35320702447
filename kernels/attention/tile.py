"""One tile of a long sequence: its own rows, and what it must know of all the others.

A tile starts at a multiple of the block size, so that its blocks are the sequence's blocks. Of the
rest of the sequence it needs LLN's state, and the keys and values of the sinks that lie outside it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from kernels.attention import arguments, cpu, library
from kernels.attention.arguments import ArgumentError
from kernels.attention.op import Map, block_diagonal_attention, lln_read
from kernels.attention.state import LLNState


class TileSinks(NamedTuple):
    """The sequence's sinks as one tile sees them."""

    inside: tuple[int, int]
    """How many of the tile's own first and last rows are sinks."""
    k: Tensor  # [S, H, D] keys of the sinks outside the tile
    v: Tensor  # [S, H, D] their values


def block_diagonal_tile(
    q: Tensor, k: Tensor, v: Tensor, *, block_size: int, sinks: TileSinks
) -> Tensor:
    """Diag for one tile: softmax over the query's own block and all the sequence's sinks."""
    arguments.check_rows(q=q, k=k, v=v)
    arguments.check_rows(k=sinks.k, v=sinks.v)
    if not len(sinks.k):
        return block_diagonal_attention(q, k, v, block_size=block_size, num_sinks=sinks.inside)
    if sinks.inside[1] > len(q):
        raise ArgumentError(f"a tile of {len(q)} rows cannot hold {sinks.inside[1]} sinks")
    if library.runs_in_triton(q):
        return _with_sinks_appended(q, k, v, block_size, sinks)
    with library.as_wide_as_given(q):
        attended = cpu.block_softmax(
            *map(library.widened, (q, k, v)),
            packed=arguments.check_cu_seqlens(None, q),
            block_size=arguments.check_block_size(block_size),
            sinks=arguments.check_sinks(sinks.inside),
            outside=cpu.OutsideSinks(library.widened(sinks.k), library.widened(sinks.v)),
        )
    return attended.to(q.dtype)


def _with_sinks_appended(
    q: Tensor, k: Tensor, v: Tensor, block_size: int, sinks: TileSinks
) -> Tensor:
    """Appended, the outside sinks count as the sequence's last ones: each is seen by every block,
    and by a last block that they happen to fill up it is seen as its own."""
    first, last = sinks.inside
    extended = (torch.cat(pair) for pair in ((q, sinks.k), (k, sinks.k), (v, sinks.v)))
    attended = block_diagonal_attention(
        *extended, block_size=block_size, num_sinks=(first, last + len(sinks.k))
    )
    return attended[: len(q)]


def lln_diag_tile(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    state: LLNState,
    alpha: float | Tensor,
    mix: float | Tensor,
    block_size: int,
    sinks: TileSinks,
    q_map: Map | None = None,
) -> Tensor:
    """mix * LLN + (1 - mix) * Diag for one tile, LLN read from the whole sequence's state."""
    diag = block_diagonal_tile(q, k, v, block_size=block_size, sinks=sinks)
    lln = lln_read(q, state, alpha=alpha, q_map=q_map)
    return cpu.mixed(diag, lln, arguments.check_mix(mix, q).to(q.dtype))
