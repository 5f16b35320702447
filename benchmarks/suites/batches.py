"""The cost of short waits for the device: the default limits on the duration of a batch, and on the
length from which a text is read tile by tile, against very loose ones.

All calls come at once, so that a limit costs most. Processor time counts, which other load on the
machine changes least.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

from benchmarks.rows import SETTLE_S, Plan, Row, Seconds, Target, ratio_row
from benchmarks.workbench import Workbench
from engine.async_engine import AsyncEngine
from engine.config import EngineConfig

_SERVED, _HALF_A_SECOND, _UNBOUND = "as served", "half a second", "no bound"
_LIMITS: dict[str, dict[str, Any]] = {
    _SERVED: {},
    _HALF_A_SECOND: {"max_batch_s": 0.5, "min_sweep_tokens": 2_048},
    _UNBOUND: {"max_batch_s": 3_600, "min_sweep_tokens": 2_048},
}
_MOST = Target("<=", 1.05)


def measure(bench: Workbench, plan: Plan) -> Iterator[Row]:
    share = 4 if plan.quick else 1
    loads = {
        "texts of 64 tokens": bench.text.passages([64] * (256 // share)),
        "texts of 128 tokens": bench.text.passages([128] * (128 // share)),
        "mixed paragraphs": bench.text.paragraphs(192 // share, shortest=8, longest=512),
        "texts of 1,362 tokens": bench.text.passages([1_362] * (12 // share)),
        "texts of 1,024 to 2,047 tokens": bench.text.passages([1_024, 1_536, 2_047] * (4 // share)),
    }
    yield from asyncio.run(_compare(bench, loads, plan.turns(4)))


async def _compare(bench: Workbench, loads: dict[str, list[str]], turns: int) -> list[Row]:
    async with AsyncExitStack() as stack:
        engines = {
            name: await stack.enter_async_context(
                AsyncEngine.load(
                    config=EngineConfig(device="cpu", num_threads=bench.threads, **limits)
                )
            )
            for name, limits in _LIMITS.items()
        }
        taken = {case: await _take_turns(engines, texts, turns) for case, texts in loads.items()}
    return [
        ratio_row(
            times,
            _SERVED,
            other,
            case=case,
            measure=f"processor time, {_SERVED} / {other}",
            target=_MOST,
        )
        for case, times in taken.items()
        for other in (_HALF_A_SECOND, _UNBOUND)
    ]


async def _take_turns(
    engines: Mapping[str, AsyncEngine], texts: Sequence[str], turns: int
) -> dict[str, Seconds]:
    """In turns, after one of each to warm up, which also tells how long a batch lasts."""
    taken: dict[str, Seconds] = dict.fromkeys(engines, ())
    for turn in range(turns + 1):
        for name, engine in engines.items():
            await asyncio.sleep(SETTLE_S)
            began_s = time.process_time()
            await _ask_all(engine, texts)
            seconds = time.process_time() - began_s
            if turn:
                taken[name] += (seconds,)
    return taken


async def _ask_all(engine: AsyncEngine, texts: Sequence[str]) -> None:
    await asyncio.gather(*(engine.embed([text]) for text in texts))
