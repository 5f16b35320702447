"""int8, and bfloat16 where the CPU has units for it, beside float32 and the int8 of others.

For CPUs with VNNI. Seconds are the processor's, which other load on the machine changes less.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import process_time

from benchmarks.int8_contest import FLOAT32, RIVALS, Int8Contest
from benchmarks.rows import Plan, Row, Target, Turns
from benchmarks.workbench import LLN_DIAG, Workbench
from engine.platform.device import cpu_multiplies_int8, possible_precisions

NEAR = {"int8": Target(">=", 0.999), "bfloat16": Target(">=", 0.9999)}
"""The precisions that compete, and how near their vectors are to float32's."""


def measure(bench: Workbench, plan: Plan) -> Iterator[Row]:
    if not cpu_multiplies_int8():
        return
    turns = Turns(repeats=plan.turns(7), clock=process_time)
    for precision, near in NEAR.items():
        if precision not in possible_precisions():
            continue
        name = f"{LLN_DIAG} {precision}"
        with bench.lln_diag_in(precision) as narrow:
            contenders = {
                FLOAT32: bench.lln_diag.embed,
                name: narrow.embed,
                **dict(zip(RIVALS, bench.int8_rivals, strict=True)),
            }
            contest = Int8Contest(name, contenders, "{} / {}, processor time", near)
            yield from contest.short_texts(bench, plan, turns)
            yield from contest.document(bench, turns.taken(plan.turns(5)))
            if not plan.quick:
                yield from contest.longest(bench, turns.taken(plan.turns(2)))
