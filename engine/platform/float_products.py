"""oneDNN's products of float32 and bfloat16, and the row counts at which bfloat16's are steady.

A row must get the same bits whatever rows are beside it. Where tiles multiply bfloat16, oneDNN
chooses by the number of rows in which order it adds up long rows. So products of each shape are
tried when a weight is packed, and where the order differs, rows are multiplied in pieces of counts
that agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

PRODUCT = torch.ops.mkldnn._linear_pointwise

TYPICAL_ROWS = 1024
"""The number of rows to pack for. Measured: the layout chosen for it is fast for any number."""

_TRIED = (
    *(1, 2, 3, 5, 8, 12, 16, 17, 24, 32, 33, 48, 64, 65, 80, 96, 112, 128, 160, 192, 224, 256, 300),
    *(320, 384, 448, 512, 600, 640, 768, 896, 1000, TYPICAL_ROWS, 1536, 2048, 3000, 4096),
)
_USUAL = (16, 64, 128, 512, 4096)
_COST_OF_A_PIECE = 32
"""In rows: what a product takes beside its rows. Measured for 16 rows of 1,536 numbers."""

_PLAIN: tuple[Any, ...] = ("none", (), "")


def packed(weight: Tensor) -> Tensor:
    """A weight [out, in] in oneDNN's layout."""
    found: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, TYPICAL_ROWS)
    return found


def steady_product(x: Tensor, weight: Tensor, bias: Tensor | None, *fused: Any) -> Tensor:
    """activation(x W^T + b) in bfloat16 for rows x [T, in], T > 0."""
    counts = steady_counts(weight.shape[1], weight.shape[0], torch.get_num_threads())
    if counts is None and len(x) <= _TRIED[-1]:
        found: Tensor = PRODUCT.default(x.to(weight.dtype), weight, bias, *fused)
        return found
    parts = [
        PRODUCT.default(_rows(x, piece, weight.dtype), weight, bias, *fused)[: piece.length]
        for piece in pieces(len(x), counts or _TRIED)
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


class Piece(NamedTuple):
    start: int
    length: int
    rows: int  # that are multiplied: the piece's own, and others that fill it up


@lru_cache(maxsize=1024)
def pieces(num_rows: int, counts: tuple[int, ...]) -> tuple[Piece, ...]:
    """The cheapest way to cut rows up into steady counts. The last piece may be filled up."""
    found, start = [], 0
    while num_rows - start > counts[-1]:
        found.append(Piece(start, counts[-1], counts[-1]))
        start += counts[-1]
    for count in _cheapest(num_rows - start, counts):
        found.append(Piece(start, min(count, num_rows - start), count))
        start += count
    return tuple(found)


@lru_cache(maxsize=64)
def _plans(counts: tuple[int, ...]) -> Sequence[tuple[int, tuple[int, ...]]]:
    """The cost and the counts of the cheapest cut, for each number of rows up to the largest."""
    plans: list[tuple[int, tuple[int, ...]]] = [(0, ())]
    for num_rows in range(1, counts[-1] + 1):
        options = [(count, plans[max(0, num_rows - count)]) for count in counts]
        count, (cost, others) = min(
            options, key=lambda option: option[0] + _COST_OF_A_PIECE + option[1][0]
        )
        whole = tuple(sorted((count, *others), reverse=True))
        plans.append((cost + count + _COST_OF_A_PIECE, whole))
    return plans


def _cheapest(num_rows: int, counts: tuple[int, ...]) -> tuple[int, ...]:
    return _plans(counts)[num_rows][1]


def _rows(x: Tensor, piece: Piece, dtype: torch.dtype) -> Tensor:
    own = x[piece.start : piece.start + piece.length]
    if piece.length == piece.rows:
        return own.to(dtype)
    filled = torch.zeros(piece.rows, x.shape[1], dtype=dtype)
    filled[: piece.length] = own
    return filled


@cache
@torch.inference_mode()
def steady_counts(num_in: int, num_out: int, threads: int) -> tuple[int, ...] | None:
    """The row counts, in order, at which products of bfloat16 give a row the same bits; None if all
    counts do."""
    del threads  # only a key of the cache: torch's own number may change the order
    alike = _alike(num_in, num_out)
    return None if len(alike) == 1 else min(alike, key=_usual_cost)


def _usual_cost(counts: tuple[int, ...]) -> float:
    """Of texts and batches of usual sizes, relative to what they would cost in one piece."""
    return sum(
        sum(piece.rows + _COST_OF_A_PIECE for piece in pieces(num_rows, counts))
        / (num_rows + _COST_OF_A_PIECE)
        for num_rows in _USUAL
    )


def _alike(num_in: int, num_out: int) -> list[tuple[int, ...]]:
    """The row counts that were tried, by the bits that they give.

    The exact results are zero, so only rounding is left, and another order of additions gives
    other bits.
    """
    rows, weight = _operands_that_cancel(num_in, num_out)
    groups: list[tuple[Tensor, list[int]]] = []
    for count in reversed(_TRIED):
        found = PRODUCT.default(rows[:count], weight, None, *_PLAIN)
        for expected, counts in groups:
            if torch.equal(found, expected[:count]):
                counts.append(count)
                break
        else:
            groups.append((found, [count]))
    return [tuple(reversed(counts)) for _, counts in groups]


def _operands_that_cancel(num_in: int, num_out: int) -> tuple[Tensor, Tensor]:
    """Rows [n, in] and a packed weight whose product is zero except for rounding."""
    drawn = torch.Generator().manual_seed(0)
    half = -(-num_in // 2)
    row = torch.randn(1, half, generator=drawn)
    x = row * torch.randn(_TRIED[-1], 1, generator=drawn)
    rows = torch.cat([x, x], dim=1)[:, :num_in].to(torch.bfloat16)
    w = torch.randn(num_out, half, generator=drawn).to(torch.bfloat16)
    return rows, packed(torch.cat([w, -w], dim=1)[:, :num_in])
