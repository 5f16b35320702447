"""Whether our softmax engine gives the same vectors as sentence-transformers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.rows import Plan, Row, Target, least_row
from benchmarks.workbench import SENTENCE_TRANSFORMERS, SOFTMAX, Workbench

NUM_TEXTS, NUM_QUICK_TEXTS = 500, 64
SHORTEST, LONGEST = 3, 512  # with CLS and SEP: from one word to the end of the position table
TARGET = Target(">", 0.99999)


def measure(bench: Workbench, plan: Plan) -> Iterator[Row]:
    number = NUM_QUICK_TEXTS if plan.quick else NUM_TEXTS
    counts = np.linspace(SHORTEST, LONGEST, number).round().astype(int)
    texts = bench.text.passages(counts.tolist())
    ours, theirs = bench.softmax.embed(texts), bench.sentence_transformers(texts)
    cosines = np.sum(ours.astype(np.float64) * theirs, axis=1) / (
        np.linalg.norm(ours.astype(np.float64), axis=1)
        * np.linalg.norm(theirs.astype(np.float64), axis=1)
    )
    yield least_row(
        cosines.tolist(),
        case=f"{number} texts of {SHORTEST} to {LONGEST} tokens",
        measure=f"least cosine, {SOFTMAX} and {SENTENCE_TRANSFORMERS}",
        target=TARGET,
    )
