"""Products of bfloat16 that give a row the same bits, however many rows there are."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from engine.platform.float_products import (
    ProductKind,
    packed,
    pieces,
    steady_counts,
    steady_product,
)
from tests.engine.precisions import needs_bfloat16

PLAIN = ("none", (), "")
GELU = ("gelu", (), "none")


@pytest.mark.parametrize("counts", [(1, 2, 32, 384), (33, 48, 320), (48,)])
def test_pieces_cover_all_rows(counts: tuple[int, ...]) -> None:
    for num_rows in (1, 16, 33, 47, 48, 49, 100, 385, 1000):
        found = pieces(num_rows, counts)
        ends = [piece.start + piece.length for piece in found]
        assert [piece.start for piece in found] == [0, *ends[:-1]]
        assert ends[-1] == num_rows
        assert all(piece.rows in counts for piece in found)
        assert all(piece.length == piece.rows for piece in found[:-1])
        assert found[-1].length <= found[-1].rows


def test_pieces_are_cheap() -> None:
    """Few rows are filled up, and few pieces are made."""
    assert [piece.rows for piece in pieces(64, (1, 2, 32, 384))] == [32, 32]
    assert [piece.rows for piece in pieces(300, (1, 2, 32, 384))] == [384]
    assert [piece.rows for piece in pieces(384, (1, 2, 32, 384))] == [384]


@needs_bfloat16
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
@torch.inference_mode()
def test_a_row_has_the_same_bits_among_any_number_of_rows(
    num_in: int, num_out: int, fused: tuple[Any, ...], has_bias: bool
) -> None:
    drawn = torch.Generator().manual_seed(num_in)
    x = torch.randn(2_100, num_in, generator=drawn)
    weight = packed(torch.randn(num_out, num_in, generator=drawn).to(torch.bfloat16))
    bias = torch.randn(num_out, generator=drawn) if has_bias else None
    kind = ProductKind.of(weight, bias, fused)
    expected = steady_product(x, weight, bias, kind)
    truth = x.bfloat16().double() @ weight.to_dense().double().T
    truth = truth if bias is None else truth + bias
    truth = F.gelu(truth) if fused == GELU else truth
    assert (expected - truth).abs().max() <= 2**-8 * truth.abs().max()
    for count in (1, 2, 7, 16, 31, 47, 63, 129, 257, 385, 511, 700, 1_023, 1_025, 2_049):
        for rows in (slice(0, count), slice(2_100 - count, 2_100)):
            assert torch.equal(steady_product(x[rows], weight, bias, kind), expected[rows])


@needs_bfloat16
def test_counts_are_tried_once_for_each_shape() -> None:
    threads = torch.get_num_threads()
    for num_in, num_out in itertools.product((61, 384), (17, 64)):
        counts = steady_counts(ProductKind(num_in, num_out, False, PLAIN), threads)
        assert counts is None or sorted(set(counts)) == list(counts)
    before = steady_counts.cache_info().misses
    steady_counts(ProductKind(384, 64, False, PLAIN), threads)
    assert steady_counts.cache_info().misses == before
