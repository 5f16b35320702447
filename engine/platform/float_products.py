"""oneDNN's products of float32 and bfloat16, and the row counts at which bfloat16's are steady.

A row must get the same bits whatever rows are beside it. Where tiles multiply bfloat16, oneDNN
chooses by the number of rows in which order it adds up long rows. So products of each kind are
tried when a model is loaded, and where the order differs, rows are multiplied in pieces of counts
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


class ProductKind(NamedTuple):
    """What oneDNN's choices depend on, beside the number of rows and of threads."""

    num_in: int
    num_out: int
    has_bias: bool
    fused: tuple[Any, ...]  # an activation, as `PRODUCT` takes it

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None, fused: tuple[Any, ...]) -> ProductKind:
        num_out, num_in = weight.shape
        return cls(num_in, num_out, bias is not None, fused)


def packed(weight: Tensor) -> Tensor:
    """A weight [out, in] in oneDNN's layout."""
    found: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, TYPICAL_ROWS)
    return found


def steady_product(x: Tensor, weight: Tensor, bias: Tensor | None, kind: ProductKind) -> Tensor:
    """activation(x W^T + b) in bfloat16 for rows x [T, in], T > 0, of a product of this kind."""
    counts = steady_counts(kind, torch.get_num_threads())
    if counts is None and len(x) <= _TRIED[-1]:
        found: Tensor = PRODUCT.default(x.to(weight.dtype), weight, bias, *kind.fused)
        return found
    parts = [
        PRODUCT.default(_rows(x, piece, weight.dtype), weight, bias, *kind.fused)[: piece.length]
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
    _, cheapest = _plans(counts)[num_rows - start]
    for count in cheapest:
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


def _rows(x: Tensor, piece: Piece, dtype: torch.dtype) -> Tensor:
    own = x[piece.start : piece.start + piece.length]
    if piece.length == piece.rows:
        return own.to(dtype)
    filled = torch.zeros(piece.rows, x.shape[1], dtype=dtype)
    filled[: piece.length] = own
    return filled


@cache
@torch.inference_mode()
def steady_counts(kind: ProductKind, threads: int) -> tuple[int, ...] | None:
    """The row counts, in order, at which products of bfloat16 give a row the same bits; None if all
    counts do."""
    del threads  # only a key of the cache: torch's own number may change the order
    alike = _alike(kind)
    return None if len(alike) == 1 else min(alike, key=_usual_cost)


def _usual_cost(counts: tuple[int, ...]) -> float:
    """Of texts and batches of usual sizes, relative to what they would cost in one piece."""
    return sum(
        sum(piece.rows + _COST_OF_A_PIECE for piece in pieces(num_rows, counts))
        / (num_rows + _COST_OF_A_PIECE)
        for num_rows in _USUAL
    )


def _alike(kind: ProductKind) -> list[tuple[int, ...]]:
    """The row counts that were tried, by the bits that they give."""
    groups: list[tuple[list[Tensor], list[int]]] = []
    tried = _operands_that_cancel(kind), _ordinary_operands(kind)
    for count in reversed(_TRIED):
        found = [
            PRODUCT.default(rows[:count], weight, bias, *kind.fused) for rows, weight, bias in tried
        ]
        for expected, counts in groups:
            if all(
                torch.equal(one, other[:count]) for one, other in zip(found, expected, strict=True)
            ):
                counts.append(count)
                break
        else:
            groups.append((found, [count]))
    return [tuple(reversed(counts)) for _, counts in groups]


class _Operands(NamedTuple):
    rows: Tensor
    weight: Tensor  # packed
    bias: Tensor | None


def _operands_that_cancel(kind: ProductKind) -> _Operands:
    """The exact products are zero, so only rounding is left, and another order of additions gives
    other bits."""
    drawn = torch.Generator().manual_seed(0)
    half = -(-kind.num_in // 2)
    row = torch.randn(1, half, generator=drawn)
    x = row * torch.randn(_TRIED[-1], 1, generator=drawn)
    rows = torch.cat([x, x], dim=1)[:, : kind.num_in].to(torch.bfloat16)
    w = torch.randn(kind.num_out, half, generator=drawn).to(torch.bfloat16)
    weight = packed(torch.cat([w, -w], dim=1)[:, : kind.num_in])
    return _Operands(rows, weight, torch.zeros(kind.num_out) if kind.has_bias else None)


def _ordinary_operands(kind: ProductKind) -> _Operands:
    """Products of some units, where one way of computing an activation differs from another."""
    drawn = torch.Generator().manual_seed(1)
    few = 2 * torch.randn(256, kind.num_in, generator=drawn)
    rows = few.to(torch.bfloat16).repeat(-(-_TRIED[-1] // len(few)), 1)
    w = torch.randn(kind.num_out, kind.num_in, generator=drawn) / kind.num_in**0.5
    bias = torch.linspace(-2, 2, kind.num_out) if kind.has_bias else None
    return _Operands(rows, packed(w.to(torch.bfloat16)), bias)
