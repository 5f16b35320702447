"""The vectors of a corpus that every reading of a passage is mixed from.

One pass over each document gives the vectors of all its parts, and each part is read alone besides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import chain
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from engine.evaluation.reading_documents import DocumentLimits, ReadingDocument
from engine.evaluation.vector_store import VectorStore
from engine.model.embedding_model import EmbeddingModel
from engine.text.chunking import OPENING_TOKENS
from engine.text.tokenizer import TextTokenizer
from engine.training.encode import Vectors, ids_of, unit, window_spans
from engine.training.token_corpus import TokenRange
from engine.types import Ids


@dataclass(frozen=True)
class Parts:
    """Vectors of the parts of all documents, one row each."""

    owners: NDArray[np.int64]  # the document of each part
    alone: Vectors
    late: Vectors
    late_without_lln: Vectors
    linked: Vectors  # without LLN, linked passages are passages alone


@dataclass(frozen=True)
class Asked:
    """Queries of one kind, and what answers them."""

    vectors: Vectors
    documents: NDArray[np.int64]  # the document that each query is about
    wanted: NDArray[np.int64]  # the passage, or the document
    blocks: NDArray[np.int64]  # between the document's top and the passage; 0 for paragraphs
    is_headed: NDArray[np.bool_]


@dataclass(frozen=True)
class OnePass:
    """What one pass of another model gives: late chunks, or linked passages."""

    passages: Vectors
    chunks: Vectors
    openings: Vectors
    found: Vectors
    linked: Mapping[str, Vectors]  # the same four, by name
    wholes: Vectors
    heading_queries: Vectors
    paragraph_queries: Vectors


@dataclass(frozen=True)
class CorpusVectors:
    """All that the readings of one corpus are mixed from."""

    name: str
    num_documents: int
    num_tokens: int
    passages: Parts
    chunks: Parts
    openings: Parts  # the first words
    found: Parts  # the title that is found at the beginning; the first words where there is none
    has_title: NDArray[np.bool_]  # [documents] whether one is found
    titled: Vectors  # the passages with the title put before
    titles: Vectors  # [documents, W]
    means: Vectors  # of each document's chunks read alone
    wholes: Vectors
    wholes_without_lln: Vectors
    by_heading: Asked
    by_paragraph: Asked
    others: Mapping[str, OnePass] = field(default_factory=dict)  # by the model's name


BLOCK = 256
"""Tokens of a block of a long document in the models that ship."""


def read_corpus(
    model: EmbeddingModel,
    name: str,
    documents: Sequence[ReadingDocument],
    limits: DocumentLimits,
    others: Mapping[str, EmbeddingModel] | None = None,
    store: VectorStore | None = None,
) -> CorpusVectors:
    """Read every document with LLN and without, every part alone, and every document once by each
    of the other models."""
    store = store or VectorStore()
    texts = [one.ids for one in documents]
    placed = PlacedParts(documents, model.tokenizer, limits)
    with_lln = store.read_whole(model, texts, placed.spans)
    without = store.read_whole(model.with_attention("block_diagonal"), texts, placed.spans)
    alone = store.vectors_of(model, _alone(texts, placed.spans, model.tokenizer))
    linked = _linked(model, texts, placed, alone, store)
    opening, found, passage, chunk = (
        Parts(
            placed.owners[rows],
            alone[rows],
            with_lln.late[rows],
            without.late[rows],
            linked[rows],
        )
        for rows in (placed.kinds == kind for kind in PartKind)
    )
    between = model.tokenizer.between_special
    titled = [
        between(np.concatenate([one.title, one.ids[start:end]]))
        for one in documents
        for start, end in one.passages
    ]
    sums = np.zeros((len(documents), alone.shape[1]), np.float32)
    np.add.at(sums, chunk.owners, chunk.alone)
    return CorpusVectors(
        name=name,
        num_documents=len(documents),
        num_tokens=sum(map(len, texts)),
        passages=passage,
        chunks=chunk,
        openings=opening,
        found=found,
        has_title=np.array([one.finds_title for one in documents], bool),
        titled=store.vectors_of(model, titled),
        titles=store.vectors_of(model, [between(one.title) for one in documents]),
        means=unit(sums),
        wholes=with_lln.whole,
        wholes_without_lln=without.whole,
        by_heading=asked_by_heading(model, documents, store),
        by_paragraph=asked_by_paragraph(model, documents, store),
        others={
            label: _one_pass(other, documents, placed, store)
            for label, other in (others or {}).items()
        },
    )


def _linked(
    model: EmbeddingModel,
    texts: Sequence[Ids],
    placed: PlacedParts,
    alone: Vectors,
    store: VectorStore,
) -> Vectors:
    """Vectors of all parts as linked passages: a document is read once in passages and once in
    chunks. Its title and its first words are read alone."""
    found = alone.copy()
    for kind in (PartKind.PASSAGE, PartKind.CHUNK):
        found[placed.kinds == kind] = store.read_linked(model, texts, placed.spans_of(kind))
    return found


def _alone(
    texts: Sequence[Ids], spans: Sequence[Sequence[TokenRange]], tokenizer: TextTokenizer
) -> list[Ids]:
    """The parts as texts of their own."""
    return [
        tokenizer.between_special(text[max(start, tokenizer.num_prefix) : end])
        for text, inside in zip(texts, spans, strict=True)
        for start, end in inside
    ]


class PartKind(IntEnum):
    FIRST_WORDS = 0
    FOUND = 1
    PASSAGE = 2
    CHUNK = 3

    @property
    def part(self) -> str:
        """The field of `CorpusVectors` that holds these parts."""
        return ("openings", "found", "passages", "chunks")[self]


class PlacedParts:
    """Where the first words, titles, passages and chunks of documents are, in one list."""

    def __init__(
        self,
        documents: Sequence[ReadingDocument],
        tokenizer: TextTokenizer,
        limits: DocumentLimits,
    ) -> None:
        openings = [[(0, min(OPENING_TOKENS, len(one.ids)))] for one in documents]
        found = [[one.opening] for one in documents]
        passages = [one.passages for one in documents]
        chunks = [window_spans(len(one.ids), tokenizer, limits.chunk) for one in documents]
        by_document = list(zip(openings, found, passages, chunks, strict=True))
        self._by_document = by_document
        self.spans = [list(chain.from_iterable(kinds)) for kinds in by_document]
        self.owners = np.repeat(np.arange(len(documents)), [len(one) for one in self.spans])
        self.kinds = np.concatenate(
            [np.repeat(list(PartKind), [len(kind) for kind in kinds]) for kinds in by_document]
        )

    def spans_of(self, kind: PartKind) -> list[list[TokenRange]]:
        """Those of one kind, by document."""
        return [kinds[kind] for kinds in self._by_document]


def _one_pass(
    model: EmbeddingModel,
    documents: Sequence[ReadingDocument],
    placed: PlacedParts,
    store: VectorStore,
) -> OnePass:
    texts = [one.ids for one in documents]
    read = store.read_whole(model, texts, placed.spans)
    openings, found, passages, chunks = (read.late[placed.kinds == kind] for kind in PartKind)
    alone = store.vectors_of(model, _alone(texts, placed.spans, model.tokenizer))
    linked = _linked(model, texts, placed, alone, store)
    return OnePass(
        passages=passages,
        chunks=chunks,
        openings=openings,
        found=found,
        linked={kind.part: linked[placed.kinds == kind] for kind in PartKind},
        wholes=read.whole,
        heading_queries=asked_by_heading(model, documents, store).vectors,
        paragraph_queries=asked_by_paragraph(model, documents, store).vectors,
    )


def asked_by_heading(
    model: EmbeddingModel, documents: Sequence[ReadingDocument], store: VectorStore
) -> Asked:
    """Passages that need their document, as this model reads the queries."""
    return _asked(model, _heading_rows(documents), store)


def asked_by_paragraph(
    model: EmbeddingModel, documents: Sequence[ReadingDocument], store: VectorStore
) -> Asked:
    """Documents, by the later paragraphs that were taken out of them."""
    return _asked(model, _paragraph_rows(documents), store)


_Row: TypeAlias = tuple[int, int, int, bool, str]


def _heading_rows(documents: Sequence[ReadingDocument]) -> list[_Row]:
    rows: list[_Row] = []
    first = 0
    for at, one in enumerate(documents):
        rows += [
            (at, first + number, one.passages[number][0] // BLOCK, one.is_headed, query)
            for number, query in one.queries.items()
        ]
        first += len(one.passages)
    return rows


def _paragraph_rows(documents: Sequence[ReadingDocument]) -> list[_Row]:
    return [
        (at, at, 0, one.is_headed, text)
        for at, one in enumerate(documents)
        for text in one.paragraphs
    ]


def _asked(model: EmbeddingModel, rows: Sequence[_Row], store: VectorStore) -> Asked:
    numbers = np.array([row[:4] for row in rows], np.int64).reshape(len(rows), 4)
    documents, wanted, blocks, is_headed = numbers.T
    vectors = store.vectors_of(model, ids_of([row[4] for row in rows], model.tokenizer))
    return Asked(vectors, documents, wanted, blocks, is_headed.astype(bool))
