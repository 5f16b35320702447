"""The suites, the most important first. Each yields measured rows; a failed call says so in its."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch

from kernels.bench import peers
from kernels.bench.floors import both_work, forward_work
from kernels.bench.host import host
from kernels.bench.measure import Shape
from kernels.bench.parts import forms, parts
from kernels.bench.report import Row
from kernels.bench.runs import OURS, Bench, against, both_run, forward_run
from kernels.bench.served import served, short


def forward(bench: Bench) -> Iterator[Row]:
    """The fused forward by head size, block and length, against its largest floor."""
    for tokens in bench.lengths(8192, 32768, 131072, 1048576):
        for head_dim, num_heads in ((64, 12), (32, 12), (128, 16)):
            for block_size in (64, 128, 256, 512):
                if block_size > 128 and tokens != bench.lengths(131072)[0]:
                    continue
                shape = Shape(tokens, num_heads, head_dim, block_size)
                run = forward_run(bench.inputs(shape))
                yield bench.aimed(bench.row("forward", OURS, shape, run, work=forward_work(shape)))


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
    yield against(mine, ratio, target if bench.large else None)


def backward(bench: Bench) -> Iterator[Row]:
    """Forward and backward against their largest floor, and against linear attention's own."""
    for tokens in bench.lengths(16384, 131072):
        for head_dim, num_heads in ((64, 16), (32, 12), (128, 16)):
            for block_size in (64, 128, 256):
                shape = Shape(tokens, num_heads, head_dim, block_size)
                run = both_run(bench.inputs(shape))
                yield bench.aimed(bench.row("backward", OURS, shape, run, work=both_work(shape)))
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
        yield against(mine, ratio, 2.5 if bench.large else None)


def long(bench: Bench) -> Iterator[Row]:
    """One sequence of a million tokens, and of four."""
    sizes = (2**20, 2**22) if bench.large else (4096, 16384)
    rows = []
    for tokens in sizes:
        shape = Shape(tokens, 12, 64)
        run = forward_run(bench.inputs(shape))
        rows.append(bench.row("long", OURS, shape, run, work=forward_work(shape)))
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


SUITES: dict[str, Callable[[Bench], Iterator[Row]]] = {
    "served": served,
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
