"""int8 in reduced range, as CPUs without VNNI use it, beside float32 and the int8 of others.

Seconds are the processor's, which other load on the machine changes less.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import process_time

import numpy as np

from benchmarks.int8_contest import FLOAT32, NEAR, RIVALS, Int8Contest, nearness_row
from benchmarks.questions import Contest, new_corpora, passage_questions
from benchmarks.rows import Plan, Row, Target, Turns
from benchmarks.workbench import LLN_DIAG, Embed, Workbench
from engine.engine import Engine
from engine.platform.device import REDUCED, possible_precisions
from engine.types import Vector

PASSAGES, QUICK_PASSAGES = 60, 8
WORDS = (
    "harbour password population refund mitochondria tenant query snow quantum guitar Tuesday "
    "parliament enzyme bicycle lawyer cat revenue yellow swim theorem"
)
NARROW = f"{LLN_DIAG} {REDUCED}"
UNMOVED = Target("<=", 0.0)


def measure(bench: Workbench, plan: Plan) -> Iterator[Row]:
    if REDUCED not in possible_precisions():
        return
    wide = bench.lln_diag
    with bench.lln_diag_in(REDUCED) as narrow:
        contest = Int8Contest(NARROW, _contenders(bench, wide, narrow), "{} / {}, processor time")
        turns = Turns(repeats=plan.turns(5), clock=process_time)
        yield from contest.short_texts(bench, plan, turns)
        yield from contest.document(bench, turns.taken(plan.turns(3)))
        if not plan.quick:
            yield from contest.longest(bench, turns.taken(plan.turns(2)))
        yield _whatever_the_batch(bench, narrow)
        yield from _retrieval(plan, wide, narrow)
        words = WORDS.split()
        found = narrow.embed(words)
        yield nearness_row("words", NARROW, wide.embed(words), found, Target(">=", 0.998))


def _contenders(bench: Workbench, wide: Engine, narrow: Engine) -> dict[str, Embed]:
    rivals = dict(zip(RIVALS, bench.int8_rivals, strict=True))
    return {FLOAT32: wide.embed, NARROW: narrow.embed, **rivals}


def _whatever_the_batch(bench: Workbench, narrow: Engine) -> Row:
    texts = bench.text.passages([128] * 8)
    together = narrow.embed(texts)
    alone = np.concatenate([narrow.embed([text]) for text in texts])
    return Row(
        case="8 x 128 tokens",
        measure=f"{NARROW}: largest difference, alone and in one call",
        value=float(np.abs(together - alone).max()),
        target=UNMOVED,
        seconds={},
    )


def _retrieval(plan: Plan, wide: Engine, narrow: Engine) -> Iterator[Row]:
    contest, vectors = Contest(FLOAT32), {FLOAT32: list[Vector](), NARROW: list[Vector]()}
    for corpus in new_corpora(plan):
        questions = passage_questions(corpus, QUICK_PASSAGES if plan.quick else PASSAGES)
        scores = {}
        for name, engine in ((FLOAT32, wide), (NARROW, narrow)):
            texts = engine.embed(questions.texts)
            vectors[name].append(texts)
            scores[name] = engine.embed(questions.queries) @ texts.T
        contest.add(questions, scores)
    case = f"{len(vectors[NARROW])} corpora of passages"
    yield from contest.rows(case)
    expected, found = (np.concatenate(vectors[name]) for name in (FLOAT32, NARROW))
    yield nearness_row(case, NARROW, expected, found, NEAR)
