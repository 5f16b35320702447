"""Products of float32 and bfloat16 that give a row the same bits, however many rows there are."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from engine.platform.float_products import (
    ADDED,
    ProductKind,
    packed,
    steady_counts,
    steady_product,
    whole_counts,
)
from engine.platform.row_pieces import SteadyCounts, cheapest_counts, pieces
from tests.engine.precisions import BFLOAT16, needs_bfloat16
from tests.forked import printed_by_fork

PLAIN = ("none", (), "")
GELU = ("gelu", (), "none")
_TOLERANCE = {torch.float32: 2**-19, torch.bfloat16: 2**-8}


@pytest.mark.parametrize(
    "steady",
    [
        SteadyCounts((1, 2, 32, 384)),
        SteadyCounts((33, 48, 320)),
        SteadyCounts((48,)),
        SteadyCounts.with_all_between((2, 48, 320)),
    ],
)
def test_pieces_cover_all_rows(steady: SteadyCounts) -> None:
    for num_rows in (1, 16, 33, 47, 48, 49, 100, 321, 385, 1000):
        found = pieces(num_rows, steady)
        ends = [piece.start + piece.length for piece in found]
        assert [piece.start for piece in found] == [0, *ends[:-1]]
        assert ends[-1] == num_rows
        assert all(piece.rows in (steady.whole or steady.counts) for piece in found)
        assert all(piece.length == piece.rows for piece in found[:-1])
        assert found[-1].length <= found[-1].rows


def test_pieces_are_cheap() -> None:
    """Few rows are filled up, and few pieces are made."""
    listed = SteadyCounts((1, 2, 32, 384))
    assert [piece.rows for piece in pieces(64, listed)] == [32, 32]
    assert [piece.rows for piece in pieces(192, listed)] == [32] * 6
    assert [piece.rows for piece in pieces(300, listed)] == [384]
    assert [piece.rows for piece in pieces(384, listed)] == [384]
    between = SteadyCounts.with_all_between((2, 32, 384))
    assert [piece.rows for piece in pieces(300, between)] == [300]
    assert [piece.rows for piece in pieces(385, between)] == [384, 2]


def test_counts_between_are_used_only_where_all_that_were_tried_agree() -> None:
    tried = (1, 2, 16, 64, 512)
    assert cheapest_counts(tried, [tried]).whole == range(1, 513)
    assert cheapest_counts(tried, [(2, 16, 64, 512), (1,)]).whole == range(2, 513)
    assert cheapest_counts(tried, [(16, 64, 512), (1, 2)]).whole == range(16, 513)
    assert cheapest_counts(tried, [(512,), (1, 2, 16, 64)]) == SteadyCounts((1, 2, 16, 64))
    # Tiles of 1,024 rows count most.
    assert cheapest_counts(tried, [(16, 512), (1, 2, 64)]) == SteadyCounts((16, 512))


@pytest.mark.parametrize(
    ("num_in", "num_out", "fused", "has_bias"),
    [
        (1536, 384, PLAIN, True),
        (768, 768, GELU, True),
        (3072, 768, PLAIN, False),
        (4096, 1024, GELU, True),
        (61, 17, GELU, True),
        (61, 17, PLAIN, False),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", BFLOAT16])
@torch.inference_mode()
def test_a_row_has_the_same_bits_among_any_number_of_rows(
    dtype: str, num_in: int, num_out: int, fused: tuple[Any, ...], has_bias: bool
) -> None:
    _check_rows(_drawn(getattr(torch, dtype), num_in, num_out, has_bias), fused)


@pytest.mark.parametrize(
    ("num_in", "num_out", "has_bias"), [(1536, 384, True), (61, 17, False), (3072, 768, True)]
)
@torch.inference_mode()
def test_a_product_that_is_added_has_the_same_bits_among_any_number_of_rows(
    num_in: int, num_out: int, has_bias: bool
) -> None:
    _check_rows(_drawn(torch.float32, num_in, num_out, has_bias), ADDED)


class Drawn(NamedTuple):
    x: Tensor
    weight: Tensor  # packed
    bias: Tensor | None
    added_to: Tensor


def _drawn(dtype: torch.dtype, num_in: int, num_out: int, has_bias: bool) -> Drawn:
    drawn = torch.Generator().manual_seed(num_in)
    return Drawn(
        torch.randn(2_100, num_in, generator=drawn).to(dtype),
        packed(torch.randn(num_out, num_in, generator=drawn).to(dtype)),
        torch.randn(num_out, generator=drawn) if has_bias else None,
        torch.randn(2_100, num_out, generator=drawn),
    )


def _check_rows(drawn: Drawn, fused: tuple[Any, ...]) -> None:
    x, weight, bias, added_to = drawn
    kind = ProductKind.of(weight, bias, fused)

    def found(rows: slice) -> Tensor:
        return steady_product(
            x[rows], weight, bias, kind, added_to[rows] if fused == ADDED else None
        )

    expected = found(slice(None))
    truth = x.double() @ weight.to_dense().double().T
    truth = truth if bias is None else truth + bias
    truth = {PLAIN: truth, GELU: F.gelu(truth), ADDED: truth + added_to}[fused]
    assert (expected - truth).abs().max() <= _TOLERANCE[x.dtype] * truth.abs().max()
    for count in (1, 2, 7, 16, 31, 47, 63, 129, 257, 385, 511, 700):
        for rows in (slice(0, count), slice(2_100 - count, 2_100)):
            assert torch.equal(found(rows), expected[rows])
    for rows in (slice(0, 1_025), slice(1_077, 2_100), slice(51, 2_100)):
        assert torch.equal(found(rows), expected[rows])


def test_a_single_row_that_differs_is_filled_up() -> None:
    """Under this limit, oneDNN adds up a single row in another order than the same row of many."""
    code = (
        "import torch\n"
        "from engine.platform.float_products import *\n"
        "torch.set_grad_enabled(False)\n"
        "torch.set_num_threads(1)\n"  # with two it does not differ
        "drawn = torch.Generator().manual_seed(0)\n"
        "x = torch.randn(300, 384, generator=drawn)\n"
        "w = packed(torch.randn(384, 384, generator=drawn))\n"
        "fused = ('none', (), '')\n"
        "one, many = (PRODUCT.default(rows, w, None, *fused) for rows in (x[:1], x))\n"
        "kind = ProductKind.of(w, None, fused)\n"
        "ours = steady_product(x[:1], w, None, kind), steady_product(x, w, None, kind)\n"
        "print(torch.equal(one, many[:1]), torch.equal(ours[0], ours[1][:1]))\n"
        "print(whole_counts((kind,), torch.get_num_threads()).start)\n"
    )
    assert printed_by_fork(code, ONEDNN_MAX_CPU_ISA="SSE41").split() == ["False", "True", "2"]


def test_counts_of_several_kinds() -> None:
    threads = torch.get_num_threads()
    kinds = tuple(ProductKind(torch.float32, 61, num_out, True, GELU) for num_out in (17, 33))
    both = whole_counts(kinds, threads)
    assert set(both) == set.intersection(
        *(set(steady_counts(kind, threads).whole) for kind in kinds)
    )
    assert 10**6 in whole_counts((), threads)


@needs_bfloat16
def test_counts_are_tried_once_for_each_shape() -> None:
    threads = torch.get_num_threads()
    for num_in, num_out in itertools.product((61, 384), (17, 64)):
        kind = ProductKind(torch.bfloat16, num_in, num_out, False, PLAIN)
        counts = steady_counts(kind, threads).counts
        assert sorted(set(counts)) == list(counts)
    before = steady_counts.cache_info().misses
    steady_counts(ProductKind(torch.bfloat16, 384, 64, False, PLAIN), threads)
    assert steady_counts.cache_info().misses == before
