"""One long document against softmax over separate windows of it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from benchmarks.rows import Plan, Row, Target, Turns, ratio_row, take_turns
from benchmarks.workbench import LLN_DIAG, Workbench

TOKENS, WINDOW = 8_192, 512
WINDOWS = "softmax over windows"
TARGET = Target("<=", 1.1)


def measure(bench: Workbench, plan: Plan) -> Iterator[Row]:
    document = bench.text.document(TOKENS)
    windows = bench.text.passages([WINDOW] * (TOKENS // WINDOW))
    taken = take_turns(
        {
            LLN_DIAG: partial(bench.lln_diag.embed_document, document),
            WINDOWS: partial(bench.softmax.embed, windows),
        },
        Turns(repeats=plan.turns(7)),
    )
    yield ratio_row(
        *(taken, LLN_DIAG, WINDOWS),
        case=f"{TOKENS:,} tokens, or {len(windows)} x {WINDOW}",
        measure=f"{LLN_DIAG} / {WINDOWS}",
        target=TARGET,
    )
