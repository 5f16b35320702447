"""Documents that change: what an update from a record takes over reading the document whole.

Late chunks of 256 tokens. The document is read whole before and after its updates, and the mean of
both is what they are compared with, by the clock and by the processor's time, which other work on
the machine disturbs less.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from time import perf_counter, process_time
from typing import NamedTuple

from benchmarks.rows import Plan, Row, Target
from benchmarks.workbench import Workbench
from engine import Engine
from engine.living_types import LivingEmbedding
from engine.types import ChunkPlan

LATE = ChunkPlan(tokens=256, context="late")
APPENDS = 5
LENGTHS, QUICK_LENGTHS = (8_192, 65_536, 262_144), (8_192,)
SHORTER = LENGTHS[:2]
UPDATES, QUICK_UPDATES = 100, 5
PLACES = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Places of the paragraphs that are changed, each in the document as it was."""
APPENDED = {65_536: Target("<=", 0.10)}
CHANGED = {65_536: Target("<=", 0.06), 262_144: Target("<=", 0.02)}
HUNDRED = {65_536: Target("<=", 5)}
FOLDED = Target("<=", 1e6)
NEW = "\n\nThe committee met on Tuesday to read the report, and asked for one figure more.\n\n"


class Seconds(NamedTuple):
    clock: float
    processor: float

    @classmethod
    def now(cls) -> Seconds:
        return cls(perf_counter(), process_time())

    def since(self) -> Seconds:
        return Seconds(perf_counter() - self.clock, process_time() - self.processor)


class Update(NamedTuple):
    seconds: Seconds
    tokens_read: int
    staleness: float


def measure(bench: Workbench, plan: Plan) -> Iterator[Row]:
    engine = bench.lln_diag
    for tokens in QUICK_LENGTHS if plan.quick else LENGTHS:
        text = bench.text.speeches(tokens)
        whole, first_s = _timed(engine, text)
        changed = [_update(engine, whole, _changed(text, place)) for place in PLACES]
        folded, last_s = _timed(engine, text, fold=True)
        taken = (first_s, last_s)
        yield from _rows(whole, taken, "a paragraph changed", changed, CHANGED)
        yield Row(
            case=f"{whole.tokens:,} tokens, {whole.segments} segments",
            measure="bytes of a folded record",
            value=len(folded.record),
            target=FOLDED,
            seconds={},
        )
        if tokens in SHORTER:
            before, _ = _timed(engine, text[: text.rfind("\n\n", 0, int(0.95 * len(text)))])
            appended = [_update(engine, before, text) for _ in range(APPENDS)]
            yield from _rows(whole, taken, "5 % appended", appended, APPENDED)
            count = QUICK_UPDATES if plan.quick else UPDATES
            followed = _followed(engine, text, whole, count)
            yield from _rows(whole, taken, f"{count} updates of a paragraph", [followed], HUNDRED)
            yield from _sizes(engine, text, whole)


def _timed(engine: Engine, text: str, *, fold: bool = False) -> tuple[LivingEmbedding, Seconds]:
    started_at = Seconds.now()
    found = engine.embed_document(text, chunks=LATE, record=True, fold=fold)
    return found, started_at.since()


def _update(engine: Engine, before: LivingEmbedding, text: str) -> Update:
    started_at = Seconds.now()
    found = engine.update_document(before.record, text)
    return Update(started_at.since(), found.tokens_read, found.staleness)


def _rows(
    whole: LivingEmbedding,
    whole_s: tuple[Seconds, Seconds],
    change: str,
    updates: list[Update],
    targets: dict[int, Target],
) -> Iterator[Row]:
    """The update in the middle by its time, and the one in the middle by its tokens."""
    target = targets.get(min(LENGTHS, key=lambda length: abs(length - whole.tokens)))
    case = f"{whole.tokens:,} tokens, {change}"
    staleness = max(one.staleness for one in updates)
    for name, measure in (("clock", "seconds"), ("processor", "seconds of the processor")):
        whole_by = tuple(getattr(one, name) for one in whole_s)
        by = tuple(getattr(one.seconds, name) for one in updates)
        ratios = [one / (sum(whole_by) / 2) for one in by]
        yield Row(
            case=case,
            measure=f"{measure} / of reading it whole",
            value=median(ratios),
            target=target,
            seconds={"whole": whole_by, "update": by},
            spread=(min(ratios), max(ratios)),
            note=f"staleness of the document up to {staleness:.2g}",
        )
    shares = [one.tokens_read / whole.tokens for one in updates]
    yield Row(
        case=case,
        measure="tokens read / of reading it whole",
        value=median(shares),
        target=target,
        seconds={},
        spread=(min(shares), max(shares)),
    )


def _followed(engine: Engine, text: str, whole: LivingEmbedding, count: int) -> Update:
    """One update after the other, each from the record of the one before."""
    found, read = whole, 0
    started_at = Seconds.now()
    for number in range(count):
        text = _changed(text, (number + 0.5) / count)
        found = engine.update_document(found.record, text)
        read += found.tokens_read
    return Update(started_at.since(), read, found.staleness)


def _sizes(engine: Engine, text: str, whole: LivingEmbedding) -> Iterator[Row]:
    case = f"{whole.tokens:,} tokens, {whole.segments} segments"
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
