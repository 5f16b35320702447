"""Corpora that nobody trained on, and what upper layers make of questions about them.

Queries are read by the published model, towards whose vectors chunks are trained: no short text is
read by a trained layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.errors import InvalidInput
from engine.evaluation.bootstrap import Answers
from engine.evaluation.corpora import load_corpus
from engine.evaluation.corpus_vectors import (
    Asked,
    PartKind,
    PlacedParts,
    asked_by_heading,
    asked_by_paragraph,
)
from engine.evaluation.reading_documents import DocumentLimits, reading_documents
from engine.evaluation.readings import answers_of_documents, answers_of_passages
from engine.evaluation.vector_store import VectorStore
from engine.experiments.selectivity.upper_layers import Readers
from engine.model.pooling import PooledSpan, pool
from engine.training.encode import Vectors, pooling_of, unit
from engine.types import Ids

FAR = 1
"""Blocks between the title and a passage; farther away are those with more."""

Figure: TypeAlias = str
ReadDocument: TypeAlias = Callable[[Tensor], Tensor]
"""States [N, W] of ids [N]."""


@dataclass(frozen=True)
class LeftOutCorpus:
    name: str
    texts: Sequence[Ids]
    placed: PlacedParts
    by_heading: Asked
    by_paragraph: Asked

    def ask(self, read: ReadDocument, readers: Readers) -> Mapping[Figure, Answers]:
        """Reciprocal ranks of what late chunks find in one pass over each document."""
        late = self._late_chunks(read, readers)
        passage, chunk = (self.placed.kinds == kind for kind in (PartKind.PASSAGE, PartKind.CHUNK))
        asked, later = self.by_heading, self.by_paragraph
        found = answers_of_passages(asked.vectors, late[passage], asked)
        owners = self.placed.owners[chunk]
        return {
            "passages": found,
            "by_heading": _only(found, asked.is_headed),
            "by_first_sentence": _only(found, ~asked.is_headed),
            "far_from_title": _only(found, asked.blocks > FAR),
            "later_paragraphs": answers_of_documents(later.vectors, late[chunk], owners, later),
        }

    @torch.no_grad()
    def _late_chunks(self, read: ReadDocument, readers: Readers) -> Vectors:
        pooling = pooling_of(readers.model)
        pooled = []
        for text, inside in zip(self.texts, self.placed.spans, strict=True):
            states = read(torch.from_numpy(text.astype(np.int64)))
            spans = [PooledSpan(*span) for span in inside]
            pooled.append(pool(states, spans, pooling).numpy())
        return unit(np.concatenate(pooled))


def read_left_out(
    names: Sequence[str], readers: Readers, limits: DocumentLimits
) -> list[LeftOutCorpus]:
    """A typed error if one is unknown, or has no document within the limits."""
    return [_read_corpus(name, readers, limits) for name in names]


def _read_corpus(name: str, readers: Readers, limits: DocumentLimits) -> LeftOutCorpus:
    tokenizer, store = readers.model.tokenizer, VectorStore()
    documents = reading_documents(load_corpus(name), tokenizer, limits)
    if not any(one.queries for one in documents):
        raise InvalidInput(
            f"corpus {name} has no passage to ask for in documents of {limits.shortest} to "
            f"{limits.longest} tokens",
            code="no_questions",
            param="corpora",
            actual=name,
        )
    return LeftOutCorpus(
        name=name,
        texts=[one.ids for one in documents],
        placed=PlacedParts(documents, tokenizer, limits),
        by_heading=asked_by_heading(readers.published, documents, store),
        by_paragraph=asked_by_paragraph(readers.published, documents, store),
    )


def _only(answers: Answers, chosen: NDArray[np.bool_]) -> Answers:
    return Answers(answers.values[chosen], answers.documents[chosen])
