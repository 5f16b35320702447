"""What each part of the served model does: one taken away at a time, nothing trained anew."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.finding import cosines, finds, held_out_corpora
from benchmarks.plan import Plan
from benchmarks.row import Row
from benchmarks.workbench import Workbench
from engine.adapt.ablations import AS_SERVED, ablations_of

QUICK = (AS_SERVED, "Diag alone")
LENGTH, TEXTS = 2_048, 40


def measure(bench: Workbench, plan: Plan) -> Iterator[Row]:
    teacher = bench.softmax.model
    corpora = held_out_corpora(plan)
    students = ablations_of(bench.lln_diag.model)
    if plan.quick:
        students = {name: students[name] for name in QUICK}
    yield from cosines(teacher, students, corpora, length=LENGTH, texts=TEXTS)
    yield from finds(teacher, students, corpora)
