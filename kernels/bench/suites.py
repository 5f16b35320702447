"""The suites, the most important first. Each yields measured rows; a failed call says so in its."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor

from kernels.attention import (
    TileSinks,
    block_diagonal_attention,
    lln_attention,
    lln_diag_attention,
    lln_diag_tile,
    lln_read,
    lln_state,
    sliding_window_attention,
    softmax_attention,
)
from kernels.bench import peers
from kernels.bench.host import host
from kernels.bench.measure import Ceiling, Clock, Inputs, Run, Shape, floor_seconds, forward_floor
from kernels.bench.report import Row, first_line
from kernels.instruments import Kind, moments, row_statistics

OURS = "lln_diag_attention"
FORWARD_TENSORS, BACKWARD_TENSORS = 6, 9
HALF_WINDOW = 64  # as in ModernBERT's local layers


@dataclass(frozen=True)
class Bench:
    """Where, how and how large."""

    clock: Clock
    ceiling: Ceiling
    dtype: torch.dtype
    large: bool  # sizes for a GPU; otherwise such as take a CPU seconds

    @property
    def device(self) -> torch.device:
        return self.clock.device

    def inputs(self, shape: Shape) -> Inputs:
        return Inputs(shape, self.dtype, self.device)

    def lengths(self, *large: int) -> tuple[int, ...]:
        return large if self.large else (256, 1024)

    def row(self, suite: str, name: str, shape: Shape, run: Run, **more: Any) -> Row:
        """Measures a call; an error goes into the row."""
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
        try:
            return replace(row, seconds=self.clock.seconds(run))
        except Exception as error:  # a peer fails in its own way
            return replace(row, note=f"failed: {first_line(error)}")


def attend(inputs: Inputs, rows: tuple[Tensor, Tensor, Tensor], **form: Any) -> Tensor:
    """LLN+Diag in the plain form, except for the given arguments."""
    plain: dict[str, Any] = {
        **inputs.scales,
        "mix": inputs.mix,
        "cu_seqlens": inputs.cu_seqlens,
        "block_size": inputs.shape.block_size,
    }
    return lln_diag_attention(*rows, **{**plain, **form})


def forward_run(inputs: Inputs, **form: Any) -> Run:
    return lambda: attend(inputs, inputs.rows, **form)


def both_run(inputs: Inputs, **form: Any) -> Run:
    """Forward and backward, to q, k and v."""

    def run() -> object:
        out = attend(inputs, inputs.leaves, **form)
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
    """Against exact attention by its best backend."""
    targets = {1024: 1.0, 2048: 2.0, 16384: 30.0, 65536: 100.0}
    for tokens in bench.lengths(*targets):
        yield from _compare(
            bench, "softmax", tokens, peers.softmax_peers(bench.device), targets.get(tokens)
        )


def against_linear(bench: Bench) -> Iterator[Row]:
    """Against linear attention kernels, which do less."""
    for tokens in bench.lengths(1024, 4096, 16384, 65536):
        yield from _compare(bench, "linear", tokens, peers.linear_peers(), 1.0)


def against_compiled(bench: Bench) -> Iterator[Row]:
    """Against torch.compile of the formula."""
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


def forms(bench: Bench) -> Iterator[Row]:
    """Sinks, a gate and maps, each beside what the plain form must move."""
    shape = Shape(bench.lengths(16384)[0], 12, 64)
    inputs = bench.inputs(shape)
    there = forward_floor(shape, bench.dtype, bench.ceiling)
    tensors = FORWARD_TENSORS + BACKWARD_TENSORS
    and_back = floor_seconds(shape, tensors, bench.dtype, bench.ceiling)
    given: dict[str, dict[str, Any]] = {
        "sinks": {"num_sinks": (2, 1)},
        "gate": {"mix": inputs.gate},
        "maps": {"q_map": inputs.affine_map, "k_map": inputs.affine_map},
    }
    for form, more in given.items():
        name, once, both = f"{OURS}, {form}", forward_run(inputs, **more), both_run(inputs, **more)
        yield bench.row("forms", name, shape, once, floor_seconds=there)
        name = f"{name}, forward and backward"
        yield bench.row("forms", name, shape, both, floor_seconds=and_back)


class Part(NamedTuple):
    """An operation beside the fused one, and the least work it must do."""

    name: str
    run: Run
    tensors: int  # read and written
    columns: int  # that its products multiply every row by, in all


def parts(bench: Bench) -> Iterator[Row]:
    """All other operations: LLN, Diag, softmax, what they are made of, and the instruments."""
    for tokens, some in ((131072, _linear_parts), (4096, _square_parts)):
        shape = Shape(bench.lengths(tokens)[0], 12, 64)
        for name, run, tensors, columns in some(bench.inputs(shape)):
            flops = shape.product_flops(columns)
            floor = floor_seconds(shape, tensors, bench.dtype, bench.ceiling, flops=flops)
            yield bench.row("parts", name, shape, run, floor_seconds=floor)


def _linear_parts(inputs: Inputs) -> Iterator[Part]:
    q, k, v = inputs.rows
    width, block = inputs.shape.head_dim, inputs.shape.block_size
    alpha, beta = inputs.scales.values()
    state = lln_state(k, v, beta=beta)
    sinks = TileSinks((0, 0), k[:2], v[:2])
    others = {"state": state, "alpha": alpha, "mix": inputs.mix, "sinks": sinks}
    yield Part("lln_state", partial(lln_state, k, v, beta=beta), 2, width)
    yield Part("lln_read", partial(lln_read, q, state, alpha=alpha), 2, width)
    yield Part("lln_attention", partial(lln_attention, q, k, v, **inputs.scales), 4, 2 * width)
    diag = partial(block_diagonal_attention, q, k, v, block_size=block)
    yield Part("block_diagonal_attention", diag, 4, 2 * block)
    tile = partial(lln_diag_tile, q, k, v, block_size=block, **others)
    yield Part("lln_diag_tile", tile, 4, width + 2 * block)
    beyond_the_ends = HALF_WINDOW * (HALF_WINDOW + 1)  # keys that windows have room for
    seen = 2 * HALF_WINDOW + 1 - beyond_the_ends // inputs.shape.tokens
    windows = partial(sliding_window_attention, q, k, v, half_window=HALF_WINDOW)
    yield Part("sliding_window_attention", windows, 4, 2 * seen)
    yield Part("moments", partial(moments, q), 1, width)


def _square_parts(inputs: Inputs) -> Iterator[Part]:
    """Operations that multiply every row by every other."""
    q, k, v = inputs.rows
    tokens = inputs.shape.tokens
    yield Part("softmax_attention", partial(softmax_attention, q, k, v), 4, 2 * tokens)
    for kind in get_args(Kind):
        run = partial(row_statistics, q, k, kind=kind, **inputs.scales, mix=inputs.mix)
        yield Part(f"row_statistics, {kind}", run, 2, tokens)


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
    """What training allocates, per token."""
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
    "host": host,
    "backward": backward,
    "long": long,
    "linear": against_linear,
    "compiled": against_compiled,
    "memory": memory,
    "parts": parts,
    "forms": forms,
}
