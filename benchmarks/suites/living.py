"""Documents that change: the time of an update from a record over that of reading it whole.

Late chunks of 256 tokens; a document is read without its record only once, before its updates.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter

from benchmarks.rows import Plan, Row, Target
from benchmarks.workbench import Workbench
from engine import Engine
from engine.types import ChunkPlan, LivingEmbedding

LATE = ChunkPlan(tokens=256, context="late")
LENGTHS, QUICK_LENGTHS = (65_536, 262_144), (8_192,)
UPDATES, QUICK_UPDATES = 100, 5
APPENDED = Target("<=", 0.10)
CHANGED = {65_536: Target("<=", 0.06), 262_144: Target("<=", 0.02)}
HUNDRED = Target("<=", 5)
NEW = "\n\nThe committee met on Tuesday to read the report, and asked for one figure more.\n\n"


def measure(bench: Workbench, plan: Plan) -> Iterator[Row]:
    engine = bench.lln_diag
    for tokens in QUICK_LENGTHS if plan.quick else LENGTHS:
        text = bench.text.library(tokens)
        whole, whole_s = _timed(engine, text)
        yield from _sizes(engine, text, whole, tokens)
        yield _row(tokens, "a paragraph changed", engine, _changed(text, 0.5), whole, whole_s)
        if tokens == LENGTHS[-1]:
            continue
        before, _ = _timed(engine, text[: int(0.95 * len(text))])
        yield _row(tokens, "5 % appended", engine, text, before, whole_s, APPENDED)
        yield _hundred(engine, text, whole, whole_s, plan)


def _timed(engine: Engine, text: str) -> tuple[LivingEmbedding, float]:
    started_at = perf_counter()
    found = engine.embed_document(text, chunks=LATE, record=True)
    return found, perf_counter() - started_at


def _row(
    tokens: int,
    change: str,
    engine: Engine,
    text: str,
    before: LivingEmbedding,
    whole_s: float,
    target: Target | None = None,
) -> Row:
    started_at = perf_counter()
    update = engine.update_document(before.record, text)
    seconds = perf_counter() - started_at
    return Row(
        case=f"{tokens:,} tokens, {change}",
        measure="seconds of the update / of reading it whole",
        value=seconds / whole_s,
        target=target or CHANGED.get(tokens),
        seconds={"whole": (whole_s,), "update": (seconds,)},
        note=f"{update.tokens_read} tokens read, staleness {update.staleness:.2g}",
    )


def _hundred(engine: Engine, text: str, whole: LivingEmbedding, whole_s: float, plan: Plan) -> Row:
    count = QUICK_UPDATES if plan.quick else UPDATES
    found, read = whole, 0
    started_at = perf_counter()
    for number in range(count):
        text = _changed(text, (number + 0.5) / count)
        found = engine.update_document(found.record, text)
        read += found.tokens_read
    seconds = perf_counter() - started_at
    return Row(
        case=f"{whole.tokens:,} tokens, {count} updates of a paragraph each",
        measure="seconds of all updates / of reading it whole",
        value=seconds / whole_s,
        target=HUNDRED,
        seconds={"whole": (whole_s,), "updates": (seconds,)},
        note=f"{read} tokens read, staleness {found.staleness:.2g}",
    )


def _sizes(engine: Engine, text: str, whole: LivingEmbedding, tokens: int) -> Iterator[Row]:
    case = f"{tokens:,} tokens, {whole.segments} segments"
    half = engine.embed_document(text, chunks=LATE, record="float16")
    for name, found in (("float32", whole), ("float16", half)):
        value = len(found.record) / whole.tokens
        yield Row(case=case, measure=f"bytes of a {name} record a token", value=value, seconds={})
    edited = _changed(text, 0.5)
    a, b = (engine.update_document(found.record, edited) for found in (whole, half))
    cosines = [float(x.vector @ y.vector) for x, y in zip(a.chunks, b.chunks, strict=True)]
    yield Row(
        case=case,
        measure="1 - least cosine of an update's chunks, float16 and float32",
        value=1 - min(cosines),
        seconds={},
    )


def _changed(text: str, place: float) -> str:
    """The text with a paragraph more, at the end of a line near this place."""
    at = text.find("\n", int(place * len(text)))
    at = len(text) if at < 0 else at
    return text[:at] + NEW + text[at:]
