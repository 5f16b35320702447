"""Suites of what a server runs: heads of 32 with maps, a gate and a sink at either end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from kernels.attention import (
    TileSinks,
    block_diagonal_attention,
    lln_diag_tile,
    lln_state,
    merge_states,
)
from kernels.bench.floors import diag_work, forward_work
from kernels.bench.measure import Inputs, Run, Shape
from kernels.bench.report import Row
from kernels.bench.runs import OURS, Bench, forward_run

HEADS, WIDTH, SINKS = 12, 32, (1, 1)
SHORT_LENGTHS = tuple(32 + index * 224 // 31 for index in range(32))
ONE_LAUNCH_S = 25e-6
"""Allowed for a batch of short texts."""


def served(bench: Bench) -> Iterator[Row]:
    """The forward of the models that ship: in one call, and swept tile by tile."""
    sizes = ((4096, 512), (16384, 256), (131072, 256), (2**20, 256))
    for tokens, block_size in sizes if bench.large else ((1024, 512), (1024, 256)):
        shape = Shape(tokens, HEADS, WIDTH, block_size)
        inputs, work = bench.inputs(shape), forward_work(shape, maps=True)
        once = forward_run(inputs, **served_form(inputs))
        yield bench.aimed(bench.row("served", f"{OURS}, as served", shape, once, work=work))
    tokens, tile = (2**20, 2**16) if bench.large else (1024, 512)
    shape = Shape(tokens, HEADS, WIDTH, 256)
    run = sweep(bench.inputs(shape), tile)
    work = forward_work(shape, maps=True)
    row = bench.row("served", f"lln_diag_tile, swept by {tile:,}", shape, run, work=work)
    yield bench.aimed(row)


def served_form(inputs: Inputs) -> dict[str, Any]:
    affine = inputs.affine_map
    return {"mix": inputs.gate, "num_sinks": SINKS, "q_map": affine, "k_map": affine}


def sweep(inputs: Inputs, tile: int) -> Run:
    """One layer of a text of several tiles: all add to the state, then each is answered."""
    q, k, v = inputs.rows
    alpha, beta = inputs.scales.values()
    affine, gate, size = inputs.affine_map, inputs.gate, inputs.shape.block_size
    tiles = [slice(start, start + tile) for start in range(0, len(q), tile)]
    end_k, end_v = (torch.stack((x[0], x[-1])) for x in (k, v))
    seen = [TileSinks((0, 0), end_k, end_v) for _ in tiles]
    seen[0] = TileSinks((1, 0), end_k[1:], end_v[1:])
    seen[-1] = TileSinks((0, 1), end_k[:1], end_v[:1])

    def run() -> object:
        state = None
        for rows in tiles:
            part = lln_state(k[rows], v[rows], beta=beta, k_map=affine)
            state = part if state is None else merge_states(state, part)
        assert state is not None, "a text has tiles"
        return [
            lln_diag_tile(
                *(q[rows], k[rows], v[rows]),
                state=state,
                alpha=alpha,
                mix=gate,
                block_size=size,
                sinks=sinks,
                q_map=affine,
            )
            for rows, sinks in zip(tiles, seen, strict=True)
        ]

    return run


def short(bench: Bench) -> Iterator[Row]:
    """Batches of 32 short texts, one call after the other: all their sequences in one launch.

    Not as a CUDA graph, which holds the launches for long sequences as well.
    """
    shape = Shape(sum(SHORT_LENGTHS), HEADS, 64, lengths=SHORT_LENGTHS)
    run = forward_run(bench.inputs(shape))
    work = forward_work(shape)
    row = bench.row("short", f"{OURS}, one launch", shape, run, work=work, in_a_row=True)
    yield _in_time(bench, row)
    shape = Shape(sum(SHORT_LENGTHS), HEADS, WIDTH, 512, lengths=SHORT_LENGTHS)
    inputs = bench.inputs(shape)
    q, k, v = inputs.rows
    packed = inputs.packed

    def diag() -> object:
        return block_diagonal_attention(q, k, v, cu_seqlens=packed, block_size=512, num_sinks=SINKS)

    name, work = "block_diagonal_attention, as served", diag_work(shape)
    yield _in_time(bench, bench.row("short", name, shape, diag, work=work, in_a_row=True))


def _in_time(bench: Bench, row: Row) -> Row:
    met = None if row.seconds is None or not bench.large else row.seconds <= ONE_LAUNCH_S
    note = row.note or f"{len(SHORT_LENGTHS)} sequences"
    return replace(row, target=f"<= {ONE_LAUNCH_S * 1e3:g} ms", met=met, note=note)
