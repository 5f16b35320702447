"""An engine on a GPU in bfloat16: short texts beside sentence-transformers on the same GPU in the
same dtype, and long documents beside softmax over separate windows of them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from statistics import median

from benchmarks.rows import Plan, Row, Run, Seconds, Target, Turns, ratio_row, take_turns
from benchmarks.workbench import LLN_DIAG, SENTENCE_TRANSFORMERS, Workbench
from engine.types import ChunkPlan

SHORT = ((1, 16, 20), (32, 128, 10), (1024, 128, 1))
"""Texts, tokens of each, and calls in a turn."""

LENGTHS = (8_192, 131_072, 1_048_576)
QUICK_LENGTHS = (2_048,)
WINDOW, PASSAGE = 512, 256
WINDOWS, LINKED = "softmax over windows", "linked passages"
AS_FAST, NEAR_WINDOWS = Target(">=", 1.0), Target("<=", 1.1)


def measure(bench: Workbench, plan: Plan) -> Iterator[Row]:
    for number, tokens, calls in SHORT[:1] if plan.quick else SHORT:
        yield from _short(bench, plan, number, tokens, calls)
    for tokens in QUICK_LENGTHS if plan.quick else LENGTHS:
        yield from _long(bench, plan, tokens)


def _short(bench: Workbench, plan: Plan, number: int, tokens: int, calls: int) -> Iterator[Row]:
    texts = bench.text.passages([tokens] * number)
    runs: dict[str, Run] = {
        LLN_DIAG: partial(bench.lln_diag.embed, texts),
        SENTENCE_TRANSFORMERS: partial(bench.sentence_transformers, texts),
    }
    taken = take_turns(runs, Turns(repeats=plan.turns(5), calls=calls))
    case = f"{number} x {tokens} tokens"
    yield _speed(case, LLN_DIAG, number * tokens, taken)
    measure = f"{SENTENCE_TRANSFORMERS} / {LLN_DIAG}"
    pair = SENTENCE_TRANSFORMERS, LLN_DIAG
    yield ratio_row(taken, *pair, case=case, measure=measure, target=AS_FAST)


def _long(bench: Workbench, plan: Plan, tokens: int) -> Iterator[Row]:
    document = bench.text.speeches(tokens)
    passages = ChunkPlan(tokens=PASSAGE, context="linked")
    windows = bench.text.passages([WINDOW] * (tokens // WINDOW))
    runs: dict[str, Run] = {
        LLN_DIAG: partial(bench.lln_diag.embed_document, document),
        LINKED: partial(bench.lln_diag.embed_chunks, document, chunks=passages),
        WINDOWS: partial(bench.softmax.embed, windows),
    }
    taken = take_turns(runs, Turns(repeats=plan.turns(3)))
    case = f"{tokens:,} tokens"
    for name in runs:
        yield _speed(case, name, tokens, taken)
    for name in (LLN_DIAG, LINKED):
        measure = f"{name} / {WINDOWS}"
        yield ratio_row(taken, name, WINDOWS, case=case, measure=measure, target=NEAR_WINDOWS)


def _speed(case: str, name: str, tokens: int, taken: dict[str, Seconds]) -> Row:
    """From text to vector, tokenizing included."""
    value = tokens / median(taken[name])
    return Row(
        case=case, measure=f"{name}, tokens a second", value=value, seconds={name: taken[name]}
    )
