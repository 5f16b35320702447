"""What is chosen: tiles of one pass for one form of call, their candidates, a call to time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kernels.attention import lln_state, softmax_attention
from kernels.attention.gpu import tiles
from kernels.bench.measure import Inputs, Run, Shape
from kernels.bench.runs import both_run, forward_run
from kernels.bench.served import HEADS, WIDTH, served_form

TOKENS = 131072
HEAD_DIMS = (64, 128, 32, 256)
BLOCK_SIZES = (64, 128)
SERVED_BLOCK_SIZES = (256, 512)

Numbers = dict[str, int | None]
"""Fields of a tile; None is no limit of registers."""
Steps = dict[str, tuple[int | None, ...]]


@dataclass(frozen=True)
class Choice:
    """One line of the table, its candidates, and the call that they are timed with.

    A candidate has the numbers that differ from the default's.
    """

    purpose: str
    candidates: tuple[Numbers, ...]
    run: Run


def choices(
    device: torch.device, dtype: torch.dtype, *, tokens: int = TOKENS, num_heads: int = HEADS
) -> Iterator[Choice]:
    """Those of the models that ship first, and the forward's before the backward's."""
    maker = _Maker(device, dtype, tokens, num_heads)
    yield from maker.served_forward()
    for head_dim in HEAD_DIMS:
        yield from maker.forward(head_dim)
    yield from maker.served_backward()
    for head_dim in HEAD_DIMS:
        yield from maker.backward(head_dim)
    for head_dim in HEAD_DIMS:
        yield maker.softmax(head_dim)


@dataclass(frozen=True)
class _Maker:
    device: torch.device
    dtype: torch.dtype
    tokens: int
    num_heads: int

    def inputs(self, head_dim: int, block_size: int = 64, parts: int = 1) -> Inputs:
        shape = Shape(self.tokens // parts, self.num_heads, head_dim, block_size)
        return Inputs(shape, self.dtype, self.device)

    def choice(
        self,
        tile: str,
        head_dim: int,
        run: Run,
        *steps: Steps,
        block_size: int | None = None,
        weight: bool = False,
    ) -> Choice:
        purpose = tiles.purpose(tile, head_dim, self.dtype, weight=weight, block_size=block_size)
        return Choice(purpose, tuple(_combined(steps)), run)

    def served_forward(self) -> Iterator[Choice]:
        inputs = self.inputs(WIDTH)
        run = _state_run(inputs, k_map=inputs.affine_map)
        yield self.choice("state", WIDTH, run, *_state_steps(WIDTH), weight=True)
        for block_size in SERVED_BLOCK_SIZES:
            inputs = self.inputs(WIDTH, block_size)
            run = forward_run(inputs, **served_form(inputs))
            steps = _output_steps(WIDTH, block_size)
            yield self.choice("output", WIDTH, run, *steps, block_size=block_size, weight=True)

    def forward(self, head_dim: int) -> Iterator[Choice]:
        run = _state_run(self.inputs(head_dim))
        yield self.choice("state", head_dim, run, *_state_steps(head_dim))
        for block_size in BLOCK_SIZES:
            run = forward_run(self.inputs(head_dim, block_size))
            steps = _output_steps(head_dim, block_size)
            yield self.choice("output", head_dim, run, *steps, block_size=block_size)

    def served_backward(self) -> Iterator[Choice]:
        inputs = self.inputs(WIDTH, SERVED_BLOCK_SIZES[0], parts=4)
        run = both_run(inputs, **served_form(inputs))
        yield self.choice("state gradient", WIDTH, run, _gradient_steps(WIDTH), weight=True)
        for block_size in SERVED_BLOCK_SIZES:
            inputs = self.inputs(WIDTH, block_size, parts=4)
            run = both_run(inputs, **served_form(inputs))
            steps = _rows_steps(WIDTH)
            yield self.choice(
                "rows gradient", WIDTH, run, steps, block_size=block_size, weight=True
            )

    def backward(self, head_dim: int) -> Iterator[Choice]:
        run = both_run(self.inputs(head_dim, parts=4))
        yield self.choice("state gradient", head_dim, run, _gradient_steps(head_dim))
        for block_size in BLOCK_SIZES:
            run = both_run(self.inputs(head_dim, block_size, parts=4))
            steps = _rows_steps(head_dim)
            yield self.choice("rows gradient", head_dim, run, steps, block_size=block_size)

    def softmax(self, head_dim: int) -> Choice:
        rows = self.inputs(head_dim, parts=8)
        steps: Steps = {
            "queries": (64, 128),
            "keys": (32, 64, 128),
            "num_warps": (4, 8),
            "num_stages": (2, 3, 4),
        }
        return self.choice("softmax", head_dim, lambda: softmax_attention(*rows.rows), steps)


def _state_run(inputs: Inputs, **form: Any) -> Run:
    def run() -> object:
        _, k, v = inputs.rows
        return lln_state(k, v, beta=inputs.scales["beta"], **form)

    return run


def _state_steps(head_dim: int) -> Iterator[Steps]:
    """Two warps multiply without the descriptors that four share, and need no barriers."""
    warps = (1, 2) if head_dim <= 32 else (2, 4) if head_dim <= 64 else (4, 8)
    yield {"tokens": (32, 64), "num_warps": warps, "num_stages": (2, 3, 4)}
    yield {"tokens": (64,), "num_warps": (4,), "num_stages": (3, 4), "max_registers": (128, 168)}


def _output_steps(head_dim: int, block_size: int) -> Iterator[Steps]:
    four: Steps = {"queries": (64,), "num_warps": (4,)}
    if block_size <= 64:  # in one step
        yield four | {"num_stages": (1, 2), "max_registers": (None, 128, 168)}
        return
    yield four | {
        "keys": (32, 64),
        "num_stages": (2, 3, 4),
        "max_registers": (None, 128, 168),
    }
    if head_dim > 64:
        yield {"queries": (64,), "num_warps": (8,), "keys": (32, 64), "num_stages": (2, 3)}
        return
    tall: Steps = {"queries": (128,), "keys": (32, 64), "num_stages": (2, 3, 4)}
    yield tall | {"num_warps": (4,), "max_registers": (None, 168)}


def _gradient_steps(head_dim: int) -> Steps:
    tokens = (32, 64) if head_dim <= 64 else (16, 32)
    return {"tokens": tokens, "num_warps": (2, 4, 8), "num_stages": (1, 2, 3)}


def _rows_steps(head_dim: int) -> Steps:
    if head_dim > 64:
        return {"rows": (16, 32), "keys": (16,), "num_warps": (2, 4, 8), "num_stages": (1,)}
    return {"rows": (32, 64), "keys": (32,), "num_warps": (2, 4), "num_stages": (1, 2)}


def _combined(several: Sequence[Steps]) -> Iterator[Numbers]:
    for steps in several:
        for numbers in itertools.product(*steps.values()):
            yield dict(zip(steps, numbers, strict=True))
