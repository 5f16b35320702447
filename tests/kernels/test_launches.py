"""How many launches a call takes, and whether each fills an H100."""

from __future__ import annotations

import json
from functools import cache

import pytest

from tests.forked import printed_by_fork

pytest.importorskip("triton")

PROCESSORS = 132
NUM_HEADS = 12
LONG, ONE_LEVEL, TWO_LEVELS, MIDDLE, MIXED, SHORT = (
    (131_072,),
    (8192,),
    (8193,),
    (2000,),
    (1200, 500, 200, 100),
    (93, 30, 250),
)
SHAPES = (
    (LONG, 32),
    (LONG, 64),
    *((lengths, 32) for lengths in (ONE_LEVEL, 2 * ONE_LEVEL, TWO_LEVELS, MIDDLE, MIXED, SHORT)),
)

RECORD = """
import json
import sys

import torch
from kernels.attention.gpu.backward import attention_backward
from kernels.attention.gpu.forward import attention_forward
from kernels.bench import host

grids = []

def programs_of(call):
    grids.clear()
    result = call()
    return list(grids), result

shapes, num_heads = json.loads(sys.argv[1])
with host.no_driver(lambda x, y, z, *_: grids.append(x * y * z)):
    for lengths, head_dim in shapes:
        q, k, v = torch.empty(3, sum(lengths), num_heads, head_dim, dtype=torch.bfloat16)
        scale = torch.ones(len(lengths), num_heads)
        given = {
            "cu_seqlens": torch.tensor([0, *lengths]).cumsum(0, dtype=torch.int32),
            "alpha": scale, "beta": scale, "mix": torch.ones(num_heads), "block_size": 64,
        }
        known = {"shortest": min(lengths), "longest": max(lengths), "keep_state": True}
        forward, (_, state) = programs_of(lambda: attention_forward(q, k, v, **given, **known))
        backward, _ = programs_of(lambda: attention_backward(q, q, k, v, **given, state=state))
        print(json.dumps([forward, backward]))
"""

Lengths = tuple[int, ...]
Programs = tuple[list[int], list[int]]


@cache
def launched() -> dict[tuple[Lengths, int], Programs]:
    """Programs of every launch, forward and backward, by lengths and head size."""
    printed = printed_by_fork(RECORD, json.dumps([SHAPES, NUM_HEADS]), TRITON_INTERPRET="0")
    return dict(zip(SHAPES, map(json.loads, printed.splitlines()), strict=True))


@pytest.mark.parametrize("head_dim", [32, 64])
def test_a_pass_over_a_long_text_is_one_launch_that_fills_the_device_several_times(
    head_dim: int,
) -> None:
    forward, backward = launched()[LONG, head_dim]
    state, merge_of_groups, merge, output = forward
    state_gradient, *additions, rows_gradient, _ = backward
    for programs in (state, output, state_gradient, rows_gradient):
        assert programs >= 8 * PROCESSORS
    assert merge_of_groups > PROCESSORS > merge
    assert len(additions) == 4, "two sums, in two levels each"


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        pytest.param(SHORT, [1, 3], id="short"),
        pytest.param(MIXED, [4, 5], id="short and long"),
        pytest.param(MIDDLE, [3, 5], id="several pieces"),
        pytest.param(ONE_LEVEL, [3, 5], id="one level"),
        pytest.param(TWO_LEVELS, [4, 7], id="two levels"),
        # Only the forward is given the longest sequence's length.
        pytest.param(2 * ONE_LEVEL, [3, 7], id="two of one level"),
    ],
)
def test_launches_of_shorter_texts(lengths: Lengths, expected: list[int]) -> None:
    assert [len(programs) for programs in launched()[lengths, 32]] == expected
