"""What is measured, in the order of its weight. A suite yields rows; one that fails says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kernels.attention import (
    block_diagonal_attention,
    lln_diag_attention,
    lln_read,
    lln_state,
)
from kernels.attention.library import launch_errors
from kernels.bench import peers
from kernels.bench.clock import Ceiling, Clock, Run
from kernels.bench.record import Row
from kernels.bench.shapes import Inputs, Shape, floor_seconds, forward_floor
from kernels.instruments import moments, row_statistics

OURS = "lln_diag_attention"
FORWARD_TENSORS, BACKWARD_TENSORS = 6, 9


@dataclass(frozen=True)
class Bench:
    """Where, how and how large."""

    clock: Clock
    ceiling: Ceiling
    dtype: torch.dtype
    large: bool  # the sizes for a GPU; otherwise such as a CPU does in seconds

    @property
    def device(self) -> torch.device:
        return self.clock.device

    def inputs(self, shape: Shape) -> Inputs:
        return Inputs(shape, self.dtype, self.device)

    def lengths(self, *large: int) -> tuple[int, ...]:
        return large if self.large else (256, 1024)

    def row(self, suite: str, name: str, shape: Shape, run: Run, **more: Any) -> Row:
        """Measures a call; what goes wrong stands in the row."""
        row = Row(
            suite=suite,
            name=name,
            tokens=shape.tokens,
            num_heads=shape.num_heads,
            head_dim=shape.head_dim,
            block_size=shape.block_size,
            dtype=str(self.dtype).removeprefix("torch."),
            **more,
        )
        failures: tuple[type[Exception], ...] = (*launch_errors(), ValueError, TypeError)
        try:
            return replace(row, seconds=self.clock.seconds(run))
        except failures as error:
            return replace(row, note=f"failed: {str(error).splitlines()[0][:120]}")


def attend(inputs: Inputs, rows: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    return lln_diag_attention(
        *rows,
        **inputs.scales,
        mix=inputs.mix,
        cu_seqlens=inputs.cu_seqlens,
        block_size=inputs.shape.block_size,
    )


def forward_run(inputs: Inputs) -> Run:
    return lambda: attend(inputs, inputs.rows)


def both_run(inputs: Inputs) -> Run:
    """Forward and backward, to q, k and v."""

    def run() -> object:
        out = attend(inputs, inputs.leaves)
        return torch.autograd.grad(out, inputs.leaves, inputs.grad)

    return run


def forward(bench: Bench) -> Iterator[Row]:
    """The fused forward by head size, block and length, against its floor."""
    for tokens in bench.lengths(8192, 32768, 131072, 1048576):
        for head_dim, num_heads in ((64, 12), (32, 12), (128, 16)):
            for block_size in (64, 128, 256, 512):
                if block_size > 128 and tokens != bench.lengths(131072)[0]:
                    continue
                shape = Shape(tokens, num_heads, head_dim, block_size)
                floor = forward_floor(shape, bench.dtype, bench.ceiling)
                run = forward_run(bench.inputs(shape))
                row = bench.row("forward", OURS, shape, run, floor_seconds=floor)
                yield _against(row, row.fraction, 0.85) if bench.large else row


def against_softmax(bench: Bench) -> Iterator[Row]:
    """The exact attention that it stands in for, best backend."""
    targets = {1024: 1.0, 2048: 2.0, 16384: 30.0, 65536: 100.0}
    for tokens in bench.lengths(*targets):
        yield from _compare(
            bench, "softmax", tokens, peers.softmax_peers(bench.device), targets.get(tokens)
        )


def against_linear(bench: Bench) -> Iterator[Row]:
    """Linear attention kernels, which do less."""
    for tokens in bench.lengths(1024, 4096, 16384, 65536):
        yield from _compare(bench, "linear", tokens, peers.linear_peers(), 1.0)


def against_compiled(bench: Bench) -> Iterator[Row]:
    """torch.compile of the formula."""
    if not bench.large:
        return
    for tokens in (4096, 65536):
        shape = Shape(tokens, 16, 64)
        compiled = peers.compiled_formula(bench.inputs(shape))
        yield from _compare(bench, "compiled", tokens, [("torch.compile", compiled)], 3.0)


def _compare(
    bench: Bench,
    suite: str,
    tokens: int,
    others: Iterator[tuple[str, peers.Attend]] | list[tuple[str, peers.Attend]],
    target: float | None,
) -> Iterator[Row]:
    shape = Shape(tokens, 16, 64)
    inputs = bench.inputs(shape)
    mine = bench.row(suite, OURS, shape, forward_run(inputs))
    rows = [bench.row(suite, name, shape, partial(run, *inputs.rows)) for name, run in others]
    best = min((row.seconds for row in rows if row.seconds), default=None)
    yield from rows
    ratio = best / mine.seconds if best and mine.seconds else None
    yield _against(mine, ratio, target if bench.large else None)


def backward(bench: Bench) -> Iterator[Row]:
    """Forward and backward against fifteen tensors, and against linear attention's own."""
    for tokens in bench.lengths(16384, 131072):
        for head_dim, num_heads in ((64, 16), (32, 12), (128, 16)):
            for block_size in (64, 128, 256):
                shape = Shape(tokens, num_heads, head_dim, block_size)
                tensors = FORWARD_TENSORS + BACKWARD_TENSORS
                floor = floor_seconds(shape, tensors, bench.dtype, bench.ceiling)
                run = both_run(bench.inputs(shape))
                yield bench.row("backward", OURS, shape, run, floor_seconds=floor)
    tokens = bench.lengths(16384)[0]
    shape = Shape(tokens, 16, 64)
    inputs = bench.inputs(shape)
    mine = bench.row("backward", OURS, shape, both_run(inputs))
    for name, peer in peers.linear_peers():

        def both(peer: peers.Attend = peer) -> object:
            return torch.autograd.grad(peer(*inputs.leaves), inputs.leaves, inputs.grad)

        row = bench.row("backward", name, shape, both)
        yield row
        ratio = row.seconds / mine.seconds if row.seconds and mine.seconds else None
        yield _against(mine, ratio, 2.5 if bench.large else None)


def parts(bench: Bench) -> Iterator[Row]:
    """The state, its reading, Diag alone, and the instruments."""
    tokens = bench.lengths(131072)[0]
    shape = Shape(tokens, 12, 64)
    inputs = bench.inputs(shape)
    q, k, v = inputs.rows
    alpha, beta = inputs.scales.values()
    state = lln_state(k, v, beta=beta)
    runs: dict[str, tuple[Callable[[], object], float]] = {
        "lln_state": (lambda: lln_state(k, v, beta=beta), 2),
        "lln_read": (lambda: lln_read(q, state, alpha=alpha), 2),
        "block_diagonal_attention": (lambda: block_diagonal_attention(q, k, v), 4),
        "moments": (lambda: moments(q), 1),
    }
    for name, (run, tensors) in runs.items():
        floor = floor_seconds(shape, tensors, bench.dtype, bench.ceiling)
        yield bench.row("parts", name, shape, run, floor_seconds=floor)
    short = Shape(bench.lengths(4096)[0], 12, 64)
    some = bench.inputs(short)
    for kind in ("softmax", "lln", "lln_diag"):
        run = partial(row_statistics, *some.rows[:2], kind=kind, **some.scales, mix=some.mix)
        yield bench.row("parts", f"row_statistics, {kind}", short, run)


def short(bench: Bench) -> Iterator[Row]:
    """A batch of 32 short sequences, one call after the other under a CUDA graph."""
    lengths = tuple(32 + index * 224 // 31 for index in range(32))
    shape = Shape(sum(lengths), 12, 64, lengths=lengths)
    run = forward_run(bench.inputs(shape))
    row = bench.row("short", OURS, shape, run)
    if row.seconds is not None:
        row = replace(row, seconds=bench.clock.seconds_in_a_row(run), note="32 sequences")
    met = None if row.seconds is None or not bench.large else row.seconds <= 25e-6
    yield replace(row, target="<= 0.025 ms", met=met)


def long(bench: Bench) -> Iterator[Row]:
    """One sequence of a million tokens, and of four."""
    sizes = (2**20, 2**22) if bench.large else (4096, 16384)
    rows = []
    for tokens in sizes:
        shape = Shape(tokens, 12, 64)
        floor = floor_seconds(shape, FORWARD_TENSORS, bench.dtype, bench.ceiling)
        run = forward_run(bench.inputs(shape))
        rows.append(bench.row("long", OURS, shape, run, floor_seconds=floor))
    first, last = rows
    yield first
    ratio = last.seconds / first.seconds if first.seconds and last.seconds else None
    met = None if ratio is None or not bench.large else ratio <= 4.2
    yield replace(last, ratio=ratio, target="<= 4.2", met=met)


def memory(bench: Bench) -> Iterator[Row]:
    """What training allocates, by token."""
    for tokens in bench.lengths(65536, 131072, 262144):
        shape = Shape(tokens, 12, 64)
        inputs = bench.inputs(shape)
        row = bench.row("memory", f"{OURS}, forward and backward", shape, both_run(inputs))
        peak = bench.clock.peak_bytes(both_run(inputs))
        yield replace(row, peak_bytes=peak, note=f"{peak / tokens:,.0f} bytes a token")


def _against(row: Row, ratio: float | None, least: float | None) -> Row:
    if least is None or ratio is None:
        return replace(row, ratio=ratio)
    return replace(row, ratio=ratio, target=f">= {least:g}", met=ratio >= least)


SUITES: dict[str, Callable[[Bench], Iterator[Row]]] = {
    "forward": forward,
    "softmax": against_softmax,
    "short": short,
    "backward": backward,
    "long": long,
    "linear": against_linear,
    "compiled": against_compiled,
    "memory": memory,
    "parts": parts,
}
