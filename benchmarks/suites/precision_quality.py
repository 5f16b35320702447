"""What retrieval and vectors lose in bfloat16 and int8, for both LLN+Diag models that ship."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from benchmarks.questions import Contest, new_corpora, passage_questions
from benchmarks.rows import Plan, Row, Target
from benchmarks.suites.precision import NARROW
from benchmarks.workbench import Workbench
from engine.config import EngineConfig
from engine.engine import Engine
from engine.platform.device import possible_precisions

MODELS = ("default", "documents")
PASSAGES, QUICK_PASSAGES = 60, 30
FLOAT32 = "float32"
LEAST = {"bfloat16": Target(">=", 0.9999), "int8": Target(">=", 0.999)}


def measure(bench: Workbench, plan: Plan) -> Iterator[Row]:
    precisions = [FLOAT32, *(name for name in NARROW if name in possible_precisions())]
    for model in MODELS:
        engines = {
            name: Engine.load(
                model, config=EngineConfig(device="cpu", dtype=name, num_threads=bench.threads)
            )
            for name in precisions
        }
        yield from _measure_model(model, engines, plan)


def _measure_model(model: str, engines: Mapping[str, Engine], plan: Plan) -> Iterator[Row]:
    contest, cosines = Contest(FLOAT32), dict[str, list[float]]()
    for corpus in new_corpora(plan):
        questions = passage_questions(corpus, QUICK_PASSAGES if plan.quick else PASSAGES)
        texts = {name: engine.embed(questions.texts) for name, engine in engines.items()}
        queries = {name: engine.embed(questions.queries) for name, engine in engines.items()}
        contest.add(questions, {name: queries[name] @ texts[name].T for name in engines})
        for name in engines:
            cosines.setdefault(name, []).extend((texts[name] * texts[FLOAT32]).sum(1).tolist())
    case = f"{model}, {len(contest.answers[FLOAT32])} corpora of passages"
    yield from contest.rows(case)
    for name, found in cosines.items():
        if name != FLOAT32:
            yield Row(
                case=case,
                measure=f"mean cosine, {FLOAT32} and {name}",
                value=float(np.mean(found)),
                target=LEAST[name],
                seconds={},
                spread=(min(found), max(found)),
            )
