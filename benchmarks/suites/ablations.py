"""What each part of the served model does: one removed at a time, nothing trained again."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.ablation_models import AS_SERVED, ablations_of
from benchmarks.retrieval import cosine_rows, held_out_corpora, retrieval_rows
from benchmarks.rows import Plan, Row
from benchmarks.workbench import Workbench

QUICK = (AS_SERVED, "Diag alone")
LENGTH, TEXTS = 2_048, 40


def measure(bench: Workbench, plan: Plan) -> Iterator[Row]:
    teacher = bench.softmax.model
    corpora = held_out_corpora(plan)
    students = ablations_of(bench.lln_diag.model)
    if plan.quick:
        students = {name: students[name] for name in QUICK}
    yield from cosine_rows(teacher, students, corpora, length=LENGTH, texts=TEXTS)
    yield from retrieval_rows(teacher, students, corpora)
