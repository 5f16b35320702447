"""Short texts, from text to vector: a batch, as in indexing, and one query."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.rows import Plan, Row, Target, Turns, ratio_row, take_turns
from benchmarks.workbench import (
    LLN_DIAG,
    ONNX_RUNTIME,
    SENTENCE_TRANSFORMERS,
    SOFTMAX,
    Workbench,
)

TARGET = Target(">=", 1.0)


def measure(bench: Workbench, plan: Plan) -> Iterator[Row]:
    batch = bench.text.passages([128] * 32)
    yield from _compare(bench, "32 x 128 tokens", batch, Turns(repeats=plan.turns(7)))
    query = bench.text.passages([16])
    turns = Turns(repeats=plan.turns(7), calls=20)
    yield from _compare(bench, "1 x 16 tokens", query, turns)


def _compare(bench: Workbench, case: str, texts: Sequence[str], turns: Turns) -> Iterator[Row]:
    taken = take_turns(bench.on(texts), turns)
    for ours in (SOFTMAX, LLN_DIAG):
        for theirs in (SENTENCE_TRANSFORMERS, ONNX_RUNTIME):
            measure = f"{theirs} / {ours}"
            yield ratio_row(taken, theirs, ours, case=case, measure=measure, target=TARGET)
