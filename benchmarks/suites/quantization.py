"""What retrieval loses with vectors in fewer bytes, and which range int8 should have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from benchmarks.questions import Contest, Scores, new_corpora, passage_questions, top_agreement
from benchmarks.rows import Plan, Row
from benchmarks.workbench import Workbench
from engine.evaluation.corpora import Corpus, available, held_out_part
from engine.model.quantized import quantize
from engine.types import OutputDtype, Vector

PASSAGES, QUICK_PASSAGES = 120, 30
CALIBRATION_PASSAGES = 100
FLOAT = "float"

Numbers: TypeAlias = NDArray[Any]


@dataclass(frozen=True)
class Ranges:
    """A range for each dimension, as sentence-transformers calibrates them: the smallest and the
    largest number in the vectors of some text."""

    low: Vector
    high: Vector

    @classmethod
    def of(cls, vectors: Vector) -> Ranges:
        return cls(vectors.min(0), vectors.max(0))

    @property
    def step(self) -> Vector:
        found: Vector = (self.high - self.low) / np.float32(255)
        return found

    def codes(self, vectors: Vector) -> Numbers:
        return np.clip((vectors - self.low) / self.step - 128, -128, 127).astype(np.int8)

    def restored(self, vectors: Vector) -> Numbers:
        return (self.codes(vectors).astype(np.float32) + 128) * self.step + self.low


def measure(bench: Workbench, plan: Plan) -> Iterator[Row]:
    engine = bench.lln_diag
    read = partial(_coded, bench)
    contest, agreement = Contest(FLOAT), dict[str, list[float]]()
    ranges = Ranges.of(engine.embed(_calibration_texts(plan)))
    for corpus in new_corpora(plan):
        questions = passage_questions(corpus, QUICK_PASSAGES if plan.quick else PASSAGES)
        queries, texts = engine.embed(questions.queries), engine.embed(questions.texts)
        exact = queries @ texts.T
        scores = {
            FLOAT: exact,
            **{dtype: _products(read(dtype), queries, texts) for dtype in ("float16", "int8")},
            "uint8, Euclidean distance": _nearness(read("uint8"), queries, texts),
            "binary, Hamming distance": _products(_signs, queries, texts),
            "binary texts, float query": queries @ _signs(texts).T,
            "a range for each dimension, dot product": _products(ranges.codes, queries, texts),
            "a range for each dimension, cosine": _cosines(ranges.codes, queries, texts),
            "a range for each dimension, restored": _products(ranges.restored, queries, texts),
        }
        contest.add(questions, scores)
        for way, found in scores.items():
            agreement.setdefault(way, []).append(top_agreement(found, exact))
    case = f"{len(contest.answers[FLOAT])} corpora of passages"
    yield from contest.rows(case)
    for way, shares in agreement.items():
        if way != FLOAT:
            yield Row(
                case=case,
                measure=f"{way}: share of float's best ten found",
                value=float(np.mean(shares)),
                seconds={},
                spread=(min(shares), max(shares)),
            )


def _calibration_texts(plan: Plan) -> list[str]:
    """Text of other corpora than those that are asked about."""
    found: list[str] = []
    for name in available()[: 1 if plan.quick else None]:
        corpus: Corpus = held_out_part(name)
        found += passage_questions(corpus, CALIBRATION_PASSAGES).texts
    return found


def _coded(bench: Workbench, dtype: OutputDtype) -> Callable[[Vector], Numbers]:
    return lambda vectors: quantize(vectors, dtype, bench.lln_diag.info)


def _signs(vectors: Vector) -> Numbers:
    """Bits as -1 and 1: their product falls as the Hamming distance grows."""
    return np.where(vectors > 0, 1.0, -1.0).astype(np.float32)


def _products(code: Callable[[Vector], Numbers], queries: Vector, texts: Vector) -> Scores:
    found: Scores = code(queries).astype(np.float32) @ code(texts).astype(np.float32).T
    return found


def _cosines(code: Callable[[Vector], Numbers], queries: Vector, texts: Vector) -> Scores:
    def unit(vectors: Vector) -> Vector:
        numbers = code(vectors).astype(np.float32)
        found: Vector = numbers / np.linalg.norm(numbers, axis=1, keepdims=True)
        return found

    scores: Scores = unit(queries) @ unit(texts).T
    return scores


def _nearness(code: Callable[[Vector], Numbers], queries: Vector, texts: Vector) -> Scores:
    """The squared Euclidean distance, negated."""
    left, right = code(queries).astype(np.float32), code(texts).astype(np.float32)
    found: Scores = 2 * left @ right.T - (left**2).sum(1)[:, None] - (right**2).sum(1)
    return found
