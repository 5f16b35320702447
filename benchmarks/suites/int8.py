"""int8 beside float32 and the int8 of others, on CPUs with VNNI."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.int8_contest import FLOAT32, RIVALS, Int8Contest
from benchmarks.rows import Plan, Row, Turns
from benchmarks.workbench import LLN_DIAG, Workbench
from engine.platform.device import cpu_multiplies_int8

INT8 = f"{LLN_DIAG} int8"


def measure(bench: Workbench, plan: Plan) -> Iterator[Row]:
    if not cpu_multiplies_int8():
        return
    with bench.lln_diag_in("int8") as narrow:
        contenders = {
            FLOAT32: bench.lln_diag.embed,
            INT8: narrow.embed,
            **dict(zip(RIVALS, bench.int8_rivals, strict=True)),
        }
        contest = Int8Contest(INT8, contenders)
        yield from contest.short_texts(bench, plan, Turns(repeats=plan.turns(7)))
        yield from contest.document(bench, Turns(repeats=plan.turns(5)))
