"""Suites of the fused operation's forms, and of all other operations."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple, get_args

from kernels.attention import (
    PackedSequences,
    TileSinks,
    block_diagonal_attention,
    lln_attention,
    lln_diag_tile,
    lln_read,
    lln_softmax_tile,
    lln_state,
    sliding_window_attention,
    softmax_attention,
)
from kernels.bench.floors import Work, both_work, diag_work, forward_work
from kernels.bench.measure import Inputs, Run, Shape
from kernels.bench.report import Row
from kernels.bench.runs import OURS, Bench, both_run, forward_run
from kernels.instruments import Kind, moments, row_statistics

HALF_WINDOW = 64  # as in ModernBERT's local layers


def forms(bench: Bench) -> Iterator[Row]:
    """Sinks, a gate and maps, each against its largest floor."""
    shape = Shape(bench.lengths(16384)[0], 12, 64)
    inputs = bench.inputs(shape)
    given: dict[str, dict[str, Any]] = {
        "sinks": {"num_sinks": (2, 1)},
        "gate": {"mix": inputs.gate},
        "maps": {"q_map": inputs.affine_map, "k_map": inputs.affine_map},
    }
    for form, more in given.items():
        name, once, both = f"{OURS}, {form}", forward_run(inputs, **more), both_run(inputs, **more)
        work = forward_work(shape, maps=form == "maps")
        yield bench.row("forms", name, shape, once, work=work)
        work = both_work(shape, maps=form == "maps", gate=form == "gate")
        yield bench.row("forms", f"{name}, forward and backward", shape, both, work=work)


class Part(NamedTuple):
    """An operation beside the fused one, and the least work it must do."""

    name: str
    run: Run
    work: Work


def parts(bench: Bench) -> Iterator[Row]:
    """All other operations: LLN, Diag, softmax, what they are made of, and the instruments."""
    for tokens, some in ((131072, _linear_parts), (4096, _square_parts)):
        shape = Shape(bench.lengths(tokens)[0], 12, 64)
        for name, run, work in some(bench.inputs(shape)):
            yield bench.row("parts", name, shape, run, work=work)


def _linear_parts(inputs: Inputs) -> Iterator[Part]:
    q, k, v = inputs.rows
    width, block, keys = inputs.shape.head_dim, inputs.shape.block_size, inputs.shape.keys
    alpha, beta = inputs.scales.values()
    state = lln_state(k, v, beta=beta)
    sinks = TileSinks((0, 0), k[:2], v[:2])
    read = {"state": state, "alpha": alpha, "mix": inputs.mix}
    yield Part("lln_state", partial(lln_state, k, v, beta=beta), Work(2, width, width))
    yield Part("lln_read", partial(lln_read, q, state, alpha=alpha), Work(2, width, width))
    lln = partial(lln_attention, q, k, v, **inputs.scales)
    yield Part("lln_attention", lln, Work(6, 2 * width, 2 * width))
    diag = partial(block_diagonal_attention, q, k, v, block_size=block)
    yield Part("block_diagonal_attention", diag, diag_work(inputs.shape))
    passages = PackedSequences.of([*range(0, len(q), block), len(q)], q.device)
    linked = partial(lln_softmax_tile, q, k, v, cu_seqlens=passages, **read)
    yield Part("lln_softmax_tile", linked, Work(4, width + 2 * block, width + block))
    tile = partial(lln_diag_tile, q, k, v, block_size=block, sinks=sinks, **read)
    yield Part("lln_diag_tile", tile, Work(4, width + 2 * keys, width + keys))
    beyond_the_ends = HALF_WINDOW * (HALF_WINDOW + 1)  # keys that windows have room for
    seen = 2 * HALF_WINDOW + 1 - beyond_the_ends // inputs.shape.tokens
    windows = partial(sliding_window_attention, q, k, v, half_window=HALF_WINDOW)
    yield Part("sliding_window_attention", windows, Work(4, 2 * seen, seen))
    yield Part("moments", partial(moments, q), Work(1, width))


def _square_parts(inputs: Inputs) -> Iterator[Part]:
    """Operations that multiply every row by every other."""
    q, k, v = inputs.rows
    tokens = inputs.shape.tokens
    yield Part(
        "softmax_attention", partial(softmax_attention, q, k, v), Work(4, 2 * tokens, tokens)
    )
    for kind in get_args(Kind):
        run = partial(row_statistics, q, k, kind=kind, **inputs.scales, mix=inputs.mix)
        yield Part(f"row_statistics, {kind}", run, Work(2, tokens))
