"""The kinds of question that readings of passages and chunks are judged by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.evaluation.bootstrap import Answers
from engine.evaluation.corpus_vectors import CorpusVectors
from engine.evaluation.readings import (
    Reading,
    answers_by_heading,
    answers_by_paragraph,
    answers_by_paragraph_whole,
)


@dataclass(frozen=True)
class Question:
    """A kind of question: how it is answered, and which of its queries count."""

    name: str
    answer: Callable[[CorpusVectors, Reading], Answers]
    counts: Callable[[CorpusVectors], NDArray[np.bool_]]

    def answers(self, corpora: Sequence[CorpusVectors], reading: Reading) -> dict[str, Answers]:
        found = {}
        for corpus in corpora:
            everything, chosen = self.answer(corpus, reading), self.counts(corpus)
            if chosen.any():
                values, documents = everything.values[chosen], everything.documents[chosen]
                found[corpus.name] = Answers(values, documents)
        return found


def _blocks_away(least: int, most: float) -> Callable[[CorpusVectors], NDArray[np.bool_]]:
    return lambda corpus: (corpus.by_heading.blocks >= least) & (corpus.by_heading.blocks <= most)


def _every_paragraph(corpus: CorpusVectors) -> NDArray[np.bool_]:
    return np.ones(len(corpus.by_paragraph.wanted), bool)


BY_HEADING = Question(
    "passages that need their document", answers_by_heading, lambda one: one.by_heading.is_headed
)
BY_FIRST_SENTENCE = Question(
    "paragraphs by title and first sentence",
    answers_by_heading,
    lambda one: ~one.by_heading.is_headed,
)
BY_PARAGRAPH = Question("a later paragraph", answers_by_paragraph, _every_paragraph)
WHOLE_BY_PARAGRAPH = Question(
    "whole documents by a later paragraph", answers_by_paragraph_whole, _every_paragraph
)
QUESTIONS = (
    BY_HEADING,
    BY_FIRST_SENTENCE,
    Question(
        "passages that alone miss the top 10",
        answers_by_heading,
        lambda corpus: answers_by_heading(corpus, Reading()).values == 0,
    ),
    Question("the title is in the same block", answers_by_heading, _blocks_away(0, 0)),
    Question("the title is 1 to 4 blocks away", answers_by_heading, _blocks_away(1, 4)),
    Question("the title is farther away", answers_by_heading, _blocks_away(5, 1e9)),
    Question("the title is in another block", answers_by_heading, _blocks_away(1, 1e9)),
    BY_PARAGRAPH,
    WHOLE_BY_PARAGRAPH,
)
