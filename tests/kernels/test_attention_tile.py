"""A sequence attended to tile by tile is the sequence attended to at once."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from kernels.attention import (
    ArgumentError,
    TileSinks,
    block_diagonal_attention,
    block_diagonal_tile,
    lln_diag_attention,
    lln_diag_tile,
    lln_softmax_tile,
    lln_state,
    merge_states,
    reference,
)

BLOCK = 16


def rows(length: int, seed: int) -> Tensor:
    return torch.randn(length, 3, 20, generator=torch.Generator().manual_seed(seed))


def tile_sinks(k: Tensor, v: Tensor, start: int, end: int, first: int, last: int) -> TileSinks:
    outside = [*range(0 if start else first, first)]
    outside += range(len(k) - last, len(k) if end < len(k) else len(k) - last)
    inside = (0 if start else first, last if end == len(k) else 0)
    return TileSinks(inside, k[outside], v[outside])


@pytest.mark.parametrize("length", [48, 49, 63, 64, 100])
@pytest.mark.parametrize("num_sinks", [(0, 0), (1, 1), (3, 0), (0, 2), (16, 5)])
def test_tiles_make_up_the_sequence(length: int, num_sinks: tuple[int, int]) -> None:
    q, k, v = (rows(length, seed) for seed in range(3))
    bounds = [0, 32, length] if length < 64 + num_sinks[1] else [0, 32, 64, length]
    alpha, beta, mix = torch.tensor([1.5, 0.5, 2.0]), torch.tensor([1.0, 2.0, 0.5]), 0.3
    states = [lln_state(k[start:end], v[start:end], beta=beta) for start, end in pairwise(bounds)]
    state = states[0]
    for other in states[1:]:
        state = merge_states(state, other)
    diag, both = [], []
    for start, end in pairwise(bounds):
        own = q[start:end], k[start:end], v[start:end]
        sinks = tile_sinks(k, v, start, end, *num_sinks)
        diag.append(block_diagonal_tile(*own, block_size=BLOCK, sinks=sinks))
        both.append(
            lln_diag_tile(*own, state=state, alpha=alpha, mix=mix, block_size=BLOCK, sinks=sinks)
        )
    whole = block_diagonal_attention(q, k, v, block_size=BLOCK, num_sinks=num_sinks)
    torch.testing.assert_close(torch.cat(diag), whole, atol=2e-6, rtol=1e-5)
    whole = lln_diag_attention(
        *(q, k, v), alpha=alpha, beta=beta, mix=mix, block_size=BLOCK, num_sinks=num_sinks
    )
    torch.testing.assert_close(torch.cat(both), whole, atol=2e-6, rtol=1e-5)


def test_gradients_flow_through_a_tile_and_its_sinks() -> None:
    """Other code runs where a gradient is wanted."""
    q, k, v, sink_k, sink_v = (rows(n, n + i).double() for i, n in enumerate((40, 40, 40, 2, 2)))
    inputs = [x.requires_grad_() for x in (q, k, v, sink_k, sink_v)]

    def attend(*parts: Tensor) -> Tensor:
        sinks = TileSinks((1, 0), *parts[3:])
        return block_diagonal_tile(*parts[:3], block_size=BLOCK, sinks=sinks)

    with torch.no_grad():
        without = attend(*inputs)
    torch.testing.assert_close(attend(*inputs), without)
    assert torch.autograd.gradcheck(attend, inputs, fast_mode=True)


def test_a_tile_cannot_hold_more_sinks_than_rows() -> None:
    q, k, v = (rows(3, seed) for seed in range(3))
    with pytest.raises(ArgumentError, match="3 rows cannot hold 4 sinks"):
        block_diagonal_tile(q, k, v, block_size=BLOCK, sinks=TileSinks((0, 4), k[:1], v[:1]))


def test_passages_read_the_state_of_their_document() -> None:
    generator = torch.Generator().manual_seed(5)
    q, k, v = torch.randn(3, 40, 2, 16, generator=generator, dtype=torch.float64)
    bounds = torch.tensor([0, 7, 7, 40], dtype=torch.int32)
    scale = torch.tensor([0.9, 0.0, 0.4], dtype=torch.float64)
    mix = torch.tensor([0.3, 0.8], dtype=torch.float64)
    state = lln_state(k, v, beta=0.7)
    found = lln_softmax_tile(
        *(q, k, v), cu_seqlens=bounds, state=state, alpha=1.1, mix=mix, mix_scale=scale
    )
    lln = reference.lln_attention(q, k, v, alpha=1.1, beta=0.7)
    inside = reference.softmax_attention(q, k, v, cu_seqlens=bounds)
    share = (mix * scale.repeat_interleave(bounds.diff()).unsqueeze(1)).unsqueeze(-1)
    torch.testing.assert_close(found, share * lln + (1 - share) * inside)
    with pytest.raises(ArgumentError):
        lln_softmax_tile(q, k, v, cu_seqlens=bounds, state=state, alpha=1.1, mix=mix[:1])
