"""int8 in reduced range, as CPUs without VNNI use it: speed, and how far vectors move.

Seconds are the processor's, which other load on the machine changes less.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from time import process_time

import numpy as np

from benchmarks.questions import Contest, new_corpora, passage_questions
from benchmarks.rows import Plan, Row, Target, Turns, ratio_row, take_turns
from benchmarks.workbench import LLN_DIAG, Workbench
from engine.engine import Engine
from engine.platform.device import REDUCED, possible_precisions
from engine.types import Vector

PASSAGES, QUICK_PASSAGES = 60, 8
WORDS = (
    "harbour password population refund mitochondria tenant query snow quantum guitar Tuesday "
    "parliament enzyme bicycle lawyer cat revenue yellow swim theorem"
)
FLOAT32, NARROW = f"{LLN_DIAG} float32", f"{LLN_DIAG} {REDUCED}"
UNMOVED = Target("<=", 0.0)


def measure(bench: Workbench, plan: Plan) -> Iterator[Row]:
    if REDUCED not in possible_precisions():
        return
    wide = bench.lln_diag
    with bench.lln_diag_in(REDUCED) as narrow:
        yield from _speeds(bench, plan, wide, narrow)
        yield from _retrieval(plan, wide, narrow)
        words = WORDS.split()
        yield _nearness("words", wide.embed(words), narrow.embed(words), Target(">=", 0.998))


def _speeds(bench: Workbench, plan: Plan, wide: Engine, narrow: Engine) -> Iterator[Row]:
    batch, document = bench.text.passages([128] * 32), [bench.text.document(8_192)]
    for case, texts, repeats, calls in (
        ("32 x 128 tokens", batch, 5, 1),
        ("1 x 16 tokens", bench.text.passages([16]), 5, 20),
        ("8,192 tokens", document, 3, 1),
    ):
        runs = {FLOAT32: partial(wide.embed, texts), NARROW: partial(narrow.embed, texts)}
        taken = take_turns(
            runs, Turns(repeats=plan.turns(repeats), calls=calls, clock=process_time)
        )
        measured = f"{FLOAT32} / {NARROW}, processor time"
        yield ratio_row(taken, FLOAT32, NARROW, case=case, measure=measured)
    yield _nearness("8,192 tokens", wide.embed(document), narrow.embed(document), None)
    together = narrow.embed(batch[:8])
    alone = np.concatenate([narrow.embed([text]) for text in batch[:8]])
    yield Row(
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
    yield _nearness(case, expected, found, Target(">=", 0.999))


def _nearness(case: str, wide: Vector, narrow: Vector, target: Target | None) -> Row:
    cosines = (wide.astype(np.float64) * narrow).sum(1)
    return Row(
        case=case,
        measure=f"mean cosine, {FLOAT32} and {NARROW}",
        value=float(cosines.mean()),
        target=target,
        seconds={},
        spread=(float(cosines.min()), float(cosines.max())),
    )
