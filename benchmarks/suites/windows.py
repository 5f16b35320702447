"""One long document, whole and as linked passages, against softmax over separate windows of it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from benchmarks.rows import Plan, Row, Target, Turns, ratio_row, take_turns
from benchmarks.workbench import LLN_DIAG, Workbench
from engine.types import ChunkPlan

TOKENS, WINDOW, PASSAGE = 8_192, 512, 256
WINDOWS, LINKED = "softmax over windows", "linked passages"
PASSAGES = ChunkPlan(tokens=PASSAGE, context="linked")
TARGET = Target("<=", 1.1)


def measure(bench: Workbench, plan: Plan) -> Iterator[Row]:
    document = bench.text.document(TOKENS)
    windows = bench.text.passages([WINDOW] * (TOKENS // WINDOW))
    taken = take_turns(
        {
            LLN_DIAG: partial(bench.lln_diag.embed_document, document),
            LINKED: partial(bench.lln_diag.embed_chunks, document, chunks=PASSAGES),
            WINDOWS: partial(bench.softmax.embed, windows),
        },
        Turns(repeats=plan.turns(7)),
    )
    for contender in (LLN_DIAG, LINKED):
        yield ratio_row(
            *(taken, contender, WINDOWS),
            case=f"{TOKENS:,} tokens, or {len(windows)} x {WINDOW}",
            measure=f"{contender} / {WINDOWS}",
            target=TARGET,
        )
