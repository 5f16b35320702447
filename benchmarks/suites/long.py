"""One long document in our engine: LLN+Diag against softmax, and how LLN+Diag grows."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from benchmarks.rows import Plan, Row, Run, Target, Turns, ratio_row, take_turns
from benchmarks.workbench import LLN_DIAG, SOFTMAX, Workbench

AT_8K, AT_32K = Target(">=", 3), Target(">=", 12)
GROWTH = Target("<=", 4.6)
MEASURE = f"{SOFTMAX} / {LLN_DIAG}"


def measure(bench: Workbench, plan: Plan) -> Iterator[Row]:
    at_8k = _both(bench, 8_192)
    taken = take_turns(at_8k, Turns(repeats=plan.turns(3)))
    yield ratio_row(taken, SOFTMAX, LLN_DIAG, case="8,192 tokens", measure=MEASURE, target=AT_8K)
    at_32k = _both(bench, 32_768)
    yield _growth({"8k": at_8k[LLN_DIAG], "32k": at_32k[LLN_DIAG]}, plan)
    if not plan.quick:
        # Softmax takes minutes here: once, and everything is warm already.
        taken = take_turns(at_32k, Turns(repeats=plan.repeats or 1, warm=False))
        case = "32,768 tokens"
        yield ratio_row(taken, SOFTMAX, LLN_DIAG, case=case, measure=MEASURE, target=AT_32K)


def _both(bench: Workbench, tokens: int) -> dict[str, Run]:
    document = bench.text.document(tokens)
    return {
        SOFTMAX: partial(bench.softmax.embed_document, document),
        LLN_DIAG: partial(bench.lln_diag.embed_document, document),
    }


def _growth(runs: dict[str, Run], plan: Plan) -> Row:
    taken = take_turns(runs, Turns(repeats=plan.turns(5)))
    case, measure = "from 8,192 to 32,768 tokens", f"{LLN_DIAG} at 32k / at 8k"
    return ratio_row(taken, "32k", "8k", case=case, measure=measure, target=GROWTH)
