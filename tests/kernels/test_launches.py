"""How many launches a call takes, and whether each fills an H100."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

pytest.importorskip("triton")

ROOT = Path(__file__).parents[2]
PROCESSORS = 132
LENGTH = 131_072

RECORD = """
import json
import sys

import torch
from kernels.attention.gpu.backward import attention_backward
from kernels.attention.gpu.forward import attention_forward
from kernels.bench import host

grids = []
device, dtype = torch.device("cpu"), torch.bfloat16
lengths, head_dim, num_heads = json.loads(sys.argv[1])
q, k, v = torch.empty(3, sum(lengths), num_heads, head_dim, dtype=dtype)
scale = torch.ones(len(lengths), num_heads)
given = {
    "cu_seqlens": torch.tensor([0, *lengths]).cumsum(0, dtype=torch.int32),
    "alpha": scale, "beta": scale, "mix": torch.ones(num_heads), "block_size": 64,
}
known = {"shortest": min(lengths), "longest": max(lengths), "keep_state": True}
with host.no_driver(lambda grid, *_: grids.append(grid)):
    _, state = attention_forward(q, k, v, **given, **known)
    forward = list(grids)
    grids.clear()
    attention_backward(q, q, k, v, **given, state=state)
print(json.dumps([forward, grids]))
"""


@cache
def launched(lengths: tuple[int, ...], head_dim: int, num_heads: int) -> list[list[int]]:
    """Programs of every launch of the forward, and of the backward."""
    shape = json.dumps([lengths, head_dim, num_heads])
    run = subprocess.run(
        [sys.executable, "-c", RECORD, shape],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    grids: list[list[int]] = json.loads(run.stdout)
    return grids


@pytest.mark.parametrize("head_dim", [32, 64])
def test_a_pass_over_a_long_text_is_one_launch_that_fills_the_device_several_times(
    head_dim: int,
) -> None:
    forward, backward = launched((LENGTH,), head_dim, 12)
    state, _, output = forward
    state_gradient, *_, rows_gradient, _ = backward
    for programs in (state, output, state_gradient, rows_gradient):
        assert programs >= 8 * PROCESSORS


def test_launches_of_shorter_texts() -> None:
    assert [len(grids) for grids in launched((2000,), 32, 12)] == [3, 5]
    assert [len(grids) for grids in launched((1200, 500, 200, 100), 32, 12)] == [4, 5]
    assert [len(grids) for grids in launched((93, 30, 250), 32, 12)] == [1, 3]
