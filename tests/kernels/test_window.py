"""Sliding-window attention against the float64 reference."""

from __future__ import annotations

from itertools import accumulate

import pytest
import torch
from torch import Tensor

from kernels.attention import (
    ArgumentError,
    TileSinks,
    block_diagonal_tile,
    lln_read,
    lln_state,
    reference,
    sliding_window_attention,
    softmax_attention,
)

pytestmark = pytest.mark.usefixtures("poisoned_memory")


def random_qkv(rows: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    q, k, v = (torch.randn(rows, 3, 20, generator=generator) for _ in range(3))
    return q, k, v


@pytest.mark.parametrize("half_window", [0, 1, 8, 64])
@pytest.mark.parametrize("lengths", [[1], [7], [200], [64, 0, 1, 130, 65], [0], []], ids=str)
def test_sliding_window_attention(lengths: list[int], half_window: int) -> None:
    q, k, v = random_qkv(sum(lengths))
    cu_seqlens = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
    found = sliding_window_attention(q, k, v, half_window=half_window, cu_seqlens=cu_seqlens)
    truth = reference.sliding_window_attention(
        q, k, v, half_window=half_window, cu_seqlens=cu_seqlens
    )
    assert torch.allclose(found.double(), truth, atol=2e-6)


def test_a_window_as_wide_as_the_sequence_is_softmax() -> None:
    q, k, v = random_qkv(90)
    found = sliding_window_attention(q, k, v, half_window=90)
    assert torch.allclose(found, softmax_attention(q, k, v), atol=2e-6)


def test_many_batches_of_blocks() -> None:
    q, k, v = random_qkv(9000)
    found = sliding_window_attention(q, k, v, half_window=16)
    part = slice(4000, 4200)
    near = slice(part.start - 16, part.stop + 16)
    alone = sliding_window_attention(q[near], k[near], v[near], half_window=16)[16:-16]
    assert torch.allclose(found[part], alone, atol=2e-6)


def test_gradients() -> None:
    q, k, v = (x[:, :1, :16].double().requires_grad_() for x in random_qkv(9))
    assert torch.autograd.gradcheck(
        lambda q, k, v: sliding_window_attention(q, k, v, half_window=3), (q, k, v)
    )


def test_a_negative_window_is_refused() -> None:
    with pytest.raises(ArgumentError, match="half_window must not be negative, got -1"):
        sliding_window_attention(*random_qkv(4), half_window=-1)


def test_autocast_narrows_no_operation() -> None:
    """Training with bfloat16 products takes attention as wide as it comes."""
    q, k, v = random_qkv(70)
    sinks = TileSinks((1, 0), k[:1], v[:1])

    def everything() -> list[Tensor]:
        state = lln_state(k, v, beta=1.0)
        return [
            sliding_window_attention(q, k, v, half_window=20),
            *state,
            lln_read(q, state, alpha=1.0),
            block_diagonal_tile(q, k, v, block_size=64, sinks=sinks),
        ]

    wide = everything()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = everything()
    for one, expected in zip(found, wide, strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one, expected)
