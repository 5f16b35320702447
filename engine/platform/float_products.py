"""oneDNN's products of float32 and bfloat16, and the row counts at which they are steady.

A row must get the same bits whatever rows are beside it. But oneDNN chooses by the number of rows
in which order it adds up a row and how it computes an activation. In float32, many CPUs treat a
single row differently; where tiles multiply bfloat16, many counts differ. So products of each kind
are tried when a model is loaded, and rows are multiplied in counts that agree.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from engine.platform.row_pieces import Piece, SteadyCounts, cheapest_counts, pieces

PRODUCT = torch.ops.mkldnn._linear_pointwise

ADDED = ("add",)
"""Stands for an activation: the product is added to given rows."""

TYPICAL_ROWS = 1024
"""The number of rows to pack for. Measured: the layout chosen for it is fast for any number."""

_TRIED: Mapping[torch.dtype, tuple[int, ...]] = {
    # Few, because a server's start waits for them: some 0.1 s for the default model.
    torch.float32: (1, 2, 3, 8, 16, 17, 33, 64, 256, 1024),
    torch.bfloat16: (
        *(1, 2, 3, 5, 8, 12, 16, 17, 24, 32, 33, 48, 64, 65, 80, 96, 112, 128, 160, 192, 224, 256),
        *(300, 320, 384, 448, 512, 600, 640, 768, 896, 1000, 1024, 1536, 2048, 3000, 4096),
    ),
}
"""More rows than the last are cut up."""

_DIFFERENT_ROWS = 256
_LEAST_ROWS: Mapping[torch.dtype, int] = {torch.float32: 4, torch.bfloat16: 64}
"""That are compared for each count: two ways may agree in a few numbers, most of all if rounded."""


@cache
def fuses_gelu_slowly() -> bool:
    """Whether torch's GELU after a float32 product is faster than oneDNN's within it, though it
    reads the rows once more. Measured with AVX2 alone (`python -m benchmarks products`)."""
    return torch.backends.cpu.get_cpu_capability() == "AVX2"


class ProductKind(NamedTuple):
    """What oneDNN's choices depend on, beside the number of rows and of threads."""

    dtype: torch.dtype
    num_in: int
    num_out: int
    has_bias: bool
    fused: tuple[Any, ...]  # an activation, as `PRODUCT` takes it, or ADDED

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None, fused: tuple[Any, ...]) -> ProductKind:
        num_out, num_in = weight.shape
        return cls(weight.dtype, num_in, num_out, bias is not None, fused)


class _Operands(NamedTuple):
    rows: Tensor  # [T, in]
    weight: Tensor  # [out, in], packed
    bias: Tensor | None  # [out]
    added_to: Tensor | None  # [T, out], if the kind is ADDED


def packed(weight: Tensor) -> Tensor:
    """A weight [out, in] in oneDNN's layout."""
    found: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, TYPICAL_ROWS)
    return found


def steady_product(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    kind: ProductKind,
    added_to: Tensor | None = None,
) -> Tensor:
    """activation(x W^T + b), or x W^T + b + added_to, for rows x [T, in], T > 0, of this kind.

    The result has the kind's dtype.
    """
    steady = steady_counts(kind, torch.get_num_threads())
    whole = _Operands(x.to(kind.dtype), weight, bias, added_to)
    if len(x) in steady.whole:
        return _product(whole, kind)
    return _product_in_pieces(whole, kind, pieces(len(x), steady))


def _product_in_pieces(whole: _Operands, kind: ProductKind, cut: Sequence[Piece]) -> Tensor:
    """Views of all pieces are made at once: one by one they take as long as a small product."""
    lengths = [piece.length for piece in cut]
    rows = whole.rows.split_with_sizes(lengths)
    added = (
        [None] * len(cut) if whole.added_to is None else whole.added_to.split_with_sizes(lengths)
    )
    parts = []
    for own, to, piece in zip(rows, added, cut, strict=True):
        y = _product(_filled(_Operands(own, whole.weight, whole.bias, to), piece), kind)
        parts.append(y if piece.length == piece.rows else y[: piece.length])
    return _joined(parts)


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _product(operands: _Operands, kind: ProductKind) -> Tensor:
    rows, weight, bias, added_to = operands
    found: Tensor = (
        PRODUCT.default(rows, weight, bias, *kind.fused)
        if added_to is None
        else PRODUCT.binary(rows, added_to, weight, bias, *kind.fused)
    )
    return found


def _filled(own: _Operands, piece: Piece) -> _Operands:
    """A piece's operands with as many rows as are multiplied."""
    if piece.length == piece.rows:
        return own
    added_to = None if own.added_to is None else _with_zeros(own.added_to, piece.rows)
    return own._replace(rows=_with_zeros(own.rows, piece.rows), added_to=added_to)


def _with_zeros(x: Tensor, num_rows: int) -> Tensor:
    filled = x.new_empty(num_rows, x.shape[1])
    filled[: len(x)] = x
    filled[len(x) :] = 0
    return filled


@cache
def whole_counts(kinds: tuple[ProductKind, ...], threads: int) -> range:
    """The row counts at which products of all these kinds are neither cut up nor filled up."""
    found = [steady_counts(kind, threads).whole for kind in kinds]
    return range(
        max((one.start for one in found), default=1),
        min((one.stop for one in found), default=sys.maxsize),
    )


@cache
@torch.inference_mode()
def steady_counts(kind: ProductKind, threads: int) -> SteadyCounts:
    """The row counts at which products of this kind give a row the same bits."""
    del threads  # only a key of the cache: torch's own number may change the order
    tried = _TRIED[kind.dtype]
    return cheapest_counts(tried, _alike(kind, tried))


@torch.inference_mode()
def first_rows(kind: ProductKind) -> list[Tensor]:
    """Products of a few rows as this thread multiplies them, to be compared with another's."""
    count = steady_counts(kind, torch.get_num_threads()).counts[0]
    all_operands = _trial_operands(kind, _TRIED[kind.dtype][-1])
    least = _LEAST_ROWS[kind.dtype]
    return [_first_rows(operands, kind, count)[:least] for operands in all_operands]


def _alike(kind: ProductKind, tried: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The row counts that were tried, by the bits that they give."""
    groups: list[tuple[list[Tensor], list[int]]] = []
    all_operands = _trial_operands(kind, tried[-1])
    for count in reversed(tried):
        found = [_first_rows(operands, kind, count) for operands in all_operands]
        for expected, counts in groups:
            if all(
                torch.equal(one, other[: len(one)])
                for one, other in zip(found, expected, strict=True)
            ):
                counts.append(count)
                break
        else:
            groups.append((found, [count]))
    return [tuple(reversed(counts)) for _, counts in groups]


def _first_rows(operands: _Operands, kind: ProductKind, count: int) -> Tensor:
    """Products of the first rows, this many at a time."""
    times = max(1, _LEAST_ROWS[kind.dtype] // count)
    turns = [Piece(turn * count, count, count) for turn in range(times)]
    rows, added_to = operands.rows[: times * count], operands.added_to
    added_to = None if added_to is None else added_to[: times * count]
    return _product_in_pieces(operands._replace(rows=rows, added_to=added_to), kind, turns)


def _trial_operands(kind: ProductKind, num_rows: int) -> list[_Operands]:
    ordinary = _ordinary_operands(kind, num_rows)
    if kind.dtype is torch.float32:
        return [ordinary]  # nothing is rounded after the last addition, so any order shows
    return [ordinary, _operands_that_cancel(kind, num_rows)]


def _ordinary_operands(kind: ProductKind, num_rows: int) -> _Operands:
    """Products of some units, where one way of computing an activation differs from another."""
    drawn = torch.Generator().manual_seed(1)

    def windows(count: int, width: int) -> Tensor:
        """As good as random rows here, and drawing those would take longer than the products."""
        return torch.randn(count + width - 1, generator=drawn).unfold(0, width, 1)

    few = 2 * windows(min(num_rows, _DIFFERENT_ROWS), kind.num_in)
    weight = windows(kind.num_out, kind.num_in) / kind.num_in**0.5
    return _Operands(
        few.to(kind.dtype).repeat(-(-num_rows // len(few)), 1),
        packed(weight.to(kind.dtype)),
        torch.linspace(-2, 2, kind.num_out, dtype=kind.dtype) if kind.has_bias else None,
        windows(num_rows, kind.num_out).to(kind.dtype).contiguous()
        if kind.fused == ADDED
        else None,
    )


def _operands_that_cancel(kind: ProductKind, num_rows: int) -> _Operands:
    """The exact products are zero, so only rounding is left, and another order of additions gives
    other bits."""
    drawn = torch.Generator().manual_seed(0)
    half = -(-kind.num_in // 2)
    x = torch.randn(1, half, generator=drawn) * torch.randn(num_rows, 1, generator=drawn)
    w = torch.randn(kind.num_out, half, generator=drawn).to(kind.dtype)
    return _Operands(
        torch.cat([x, x], dim=1)[:, : kind.num_in].to(kind.dtype),
        packed(torch.cat([w, -w], dim=1)[:, : kind.num_in]),
        torch.zeros(kind.num_out, dtype=kind.dtype) if kind.has_bias else None,
        torch.zeros(num_rows, kind.num_out, dtype=kind.dtype) if kind.fused == ADDED else None,
    )
