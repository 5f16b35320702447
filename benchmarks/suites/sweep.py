"""One long document, tile by tile: growth of time and memory, and how far off the plan was."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter

import torch

from benchmarks.rows import Plan, Row, Target
from benchmarks.workbench import LLN_DIAG, Workbench
from engine.platform.memory import PeakMemory

LENGTHS = (1_024, 8_192, 65_536, 262_144, 1_048_576)
QUICK_LENGTHS = (1_024, 8_192)
GROWTH = Target("<=", 4.4)
MEMORY = Target("<=", 3.0)
BYTES_OFF, SECONDS_OFF = Target("<=", 0.10), Target("<=", 0.30)
_BYTES_SHOW_FROM = 65_536
"""For shorter texts the allocator's own reserve hides what they take. Tests check these against the
tensors themselves."""


@dataclass(frozen=True)
class Measured:
    tokens: int
    seconds: float
    peak_bytes: int | None  # where the machine can tell
    planned_seconds: float
    planned_bytes: int


def measure(bench: Workbench, plan: Plan) -> Iterator[Row]:
    engine = bench.lln_diag
    engine.embed(["Everything that is loaded once is loaded."])
    engine.plan(LENGTHS[0])
    found: dict[int, Measured] = {}
    for tokens in QUICK_LENGTHS if plan.quick else LENGTHS:
        found[tokens] = _swept(bench, bench.text.speeches(tokens))
        yield from _rows(tokens, found[tokens])
    if 262_144 in found:
        small, large = found[65_536], found[262_144]
        yield Row(
            case="from 65,536 to 262,144 tokens",
            measure="seconds at 262k / at 65k",
            value=large.seconds / small.seconds,
            target=GROWTH,
            seconds={"65k": (small.seconds,), "262k": (large.seconds,)},
        )


def _rows(asked: int, found: Measured) -> Iterator[Row]:
    case, seconds = f"{asked:,} tokens", {LLN_DIAG: (found.seconds,)}

    def row(measure: str, value: float, target: Target | None = None) -> Row:
        return Row(case=case, measure=measure, value=value, target=target, seconds=seconds)

    yield row("seconds", found.seconds)
    off = abs(found.planned_seconds / found.seconds - 1)
    yield row("planned seconds, share off", off, SECONDS_OFF)
    if asked < _BYTES_SHOW_FROM or found.peak_bytes is None:
        return
    gigabytes = found.peak_bytes / 1e9
    yield row("peak above the model, GB", gigabytes, MEMORY if asked == 262_144 else None)
    yield row("bytes a token", found.peak_bytes / found.tokens)
    yield row(
        "planned bytes, share off", abs(found.planned_bytes / found.peak_bytes - 1), BYTES_OFF
    )


def _swept(bench: Workbench, text: str) -> Measured:
    """The document's time and peak, tokenising not included, as in the plan."""
    engine = bench.lln_diag
    (encoded,) = engine.model.tokenizer.encode_batch([text])
    ids = encoded.content.tolist()
    plan = engine.plan(encoded.num_tokens)
    memory = PeakMemory(torch.device("cpu"))
    with memory.watching():
        started_at = perf_counter()
        engine.embed([ids])
        seconds = perf_counter() - started_at
    return Measured(
        tokens=encoded.num_tokens,
        seconds=seconds,
        peak_bytes=memory.bytes,
        planned_seconds=plan.seconds,
        planned_bytes=plan.bytes,
    )
