"""What instruments cost: one head, a whole document, their growth, and short texts beside them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial

import numpy as np
import torch

from benchmarks.rows import (
    Plan,
    Row,
    Run,
    Seconds,
    Target,
    Turns,
    ratio_row,
    seconds_of,
    take_turns,
)
from benchmarks.workbench import Workbench
from engine.async_engine import AsyncEngine
from engine.diagnostics import HEAD_INSTRUMENTS, HeadView, measure

GAP_S = Target("<=", 0.5)
DOCUMENT_S = Target("<=", 20)
GROWTH = Target("<=", 4.4)
WAIT_S = Target("<=", 0.25)
NUM_SHORT_TEXTS = 200


def measure_suite(bench: Workbench, plan: Plan) -> Iterator[Row]:
    yield _exact_gap(plan)
    yield _whole_document(bench, plan)
    if not plan.quick:
        yield _growth(plan)
        yield asyncio.run(_short_texts_meanwhile(bench))


def _exact_gap(plan: Plan) -> Row:
    """The exact spectral gap of an LLN head, on one core."""
    view = _random_head(65_536, 64)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        taken = take_turns(
            {"gap": partial(measure, view, ["spectral_gap"])}, Turns(repeats=plan.turns(5))
        )
    finally:
        torch.set_num_threads(threads)
    case = "LLN head of 64, 65,536 tokens, one thread"
    return _seconds_row(case, "exact spectral gap, s", taken["gap"], GAP_S)


def _whole_document(bench: Workbench, plan: Plan) -> Row:
    """All instruments of the default set, on every head of the default model."""
    document = bench.text.document(16_384)
    run = {"diagnosis": partial(bench.lln_diag.diagnose, document)}
    taken = take_turns(run, Turns(repeats=plan.turns(2), warm=False))
    case = "16,384 tokens, 72 heads"
    return _seconds_row(case, "whole diagnosis, s", taken["diagnosis"], DOCUMENT_S)


def _growth(plan: Plan) -> Row:
    """All linear instruments, on one LLN head."""
    names = [name for name, one in HEAD_INSTRUMENTS.items() if not one.needs]
    runs: dict[str, Run] = {
        name: partial(measure, _random_head(length, 32), names)
        for name, length in (("262k", 262_144), ("65k", 65_536))
    }
    taken = take_turns(runs, Turns(repeats=plan.turns(3)))
    case = "LLN head of 32, from 65,536 to 262,144 tokens"
    return ratio_row(taken, "262k", "65k", case=case, measure="time at 262k / 65k", target=GROWTH)


async def _short_texts_meanwhile(bench: Workbench) -> Row:
    """Short texts one after the other, first alone and then beside the diagnosis of a long text."""
    texts = bench.text.passages([128] * NUM_SHORT_TEXTS)
    long_text = " ".join(bench.text.passages([2_048] * 33))
    async with AsyncEngine([bench.lln_diag.model]) as engine:
        alone = await _latencies(engine, texts)
        diagnosis = asyncio.create_task(engine.diagnose(long_text))
        await asyncio.sleep(1)  # it reads its text first
        beside = await _latencies(engine, texts)
        assert not diagnosis.done(), "the diagnosis ended before the short texts did"
        diagnosis.cancel()
        await asyncio.gather(diagnosis, return_exceptions=True)
    rise = float(np.percentile(beside, 99) - np.percentile(alone, 99))
    return Row(
        case=f"{NUM_SHORT_TEXTS} texts of 128 tokens beside a diagnosis of 65,000",
        measure="rise of p99, s",
        value=rise,
        target=WAIT_S,
        seconds={"alone": alone, "beside": beside},
    )


async def _latencies(engine: AsyncEngine, texts: list[str]) -> Seconds:
    return tuple([await seconds_of(engine.embed([text])) for text in texts])


def _seconds_row(case: str, measure: str, taken: Seconds, target: Target) -> Row:
    return Row(
        case=case,
        measure=measure,
        value=float(np.median(taken)),
        target=target,
        seconds={measure: taken},
        spread=(min(taken), max(taken)),
    )


def _random_head(length: int, size: int) -> HeadView:
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, length, 1, size, generator=generator)
    one = torch.ones(1)
    return HeadView(q=q, k=k, attention="lln", alpha=one, beta=one)
