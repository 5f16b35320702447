"""What each part of the served model does: one taken away at a time, nothing trained anew."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from benchmarks.finding import finds
from benchmarks.plan import Plan
from benchmarks.row import Row
from benchmarks.workbench import Workbench
from engine.adapt.ablations import AS_SERVED, ablations_of
from engine.adapt.batches import TokenCorpus
from engine.adapt.corpora import Corpus, available
from engine.adapt.evaluate import fidelity_at
from engine.adapt.held_out import held_out_part
from engine.model.embedding_model import EmbeddingModel

QUICK = (AS_SERVED, "Diag alone")
LENGTH, TEXTS = 2_048, 40


def measure(bench: Workbench, plan: Plan) -> Iterator[Row]:
    teacher = bench.softmax.model
    corpora = [held_out_part(name) for name in (available()[:1] if plan.quick else available())]
    students = ablations_of(bench.lln_diag.model)
    if plan.quick:
        students = {name: students[name] for name in QUICK}
    yield from _fidelities(teacher, students, corpora)
    yield from finds(teacher, students, corpora)


def _fidelities(
    teacher: EmbeddingModel, students: Mapping[str, EmbeddingModel], corpora: list[Corpus]
) -> Iterator[Row]:
    bodies = [document.body for corpus in corpora for document in corpus.documents]
    tokens = TokenCorpus.of(bodies, teacher.tokenizer)
    for one in fidelity_at(teacher, students, tokens, LENGTH, count=TEXTS):
        measure = f"{LENGTH:,} tokens, mean cosine to the teacher's windows"
        yield Row(case=one.model, measure=measure, value=one.mean_cosine, seconds={})
