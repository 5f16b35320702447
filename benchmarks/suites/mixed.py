"""Many texts of very different lengths in one call, where padding costs time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from benchmarks.rows import Plan, Row, Target, Turns, ratio_row, take_turns
from benchmarks.workbench import (
    LLN_DIAG,
    ONNX_RUNTIME,
    SENTENCE_TRANSFORMERS,
    SOFTMAX,
    Workbench,
)

NUM_TEXTS = 512
SHORTEST, LONGEST = 5, 500
TARGETS = {SENTENCE_TRANSFORMERS: Target(">=", 1.2), ONNX_RUNTIME: None}


def measure(bench: Workbench, plan: Plan) -> Iterator[Row]:
    paragraphs = bench.text.paragraphs(NUM_TEXTS, shortest=SHORTEST, longest=LONGEST)
    yield from _compare(bench, f"{NUM_TEXTS} paragraphs", paragraphs, plan.turns(3))
    if not plan.quick:
        counts = np.random.default_rng(0).integers(SHORTEST, LONGEST, NUM_TEXTS, endpoint=True)
        passages = bench.text.passages(counts.tolist())
        yield from _compare(bench, f"{NUM_TEXTS} passages, all lengths", passages, plan.turns(2))


def _compare(bench: Workbench, case: str, texts: Sequence[str], repeats: int) -> Iterator[Row]:
    case = f"{case}, {bench.text.count(texts):,} tokens"
    for embed in bench.everyone.values():
        embed(texts[:32])  # warms up; a whole round would take minutes
    taken = take_turns(bench.on(texts), Turns(repeats=repeats, warm=False))
    for ours in (SOFTMAX, LLN_DIAG):
        for theirs, target in TARGETS.items():
            measure = f"{theirs} / {ours}"
            yield ratio_row(taken, theirs, ours, case=case, measure=measure, target=target)
