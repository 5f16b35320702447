"""Readings of a passage, from alone to within its whole document, as vectors to compare.

Every document is its title and its text without headings. Two kinds of question find its parts:

- passages that need their document: the query is the title and a heading, the answer the text
  below that heading, which contains neither. The title stands at the document's top only.
- a later paragraph: it is taken out of the document's later half, and the document that has the
  best chunk of 256 tokens answers it.

One pass over each document gives the vectors of both, and each part is read alone besides.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.evaluation.bootstrap import Answers
from engine.evaluation.corpora import PARAGRAPH_CHARACTERS, Corpus
from engine.evaluation.retrieval import ranks_of
from engine.execution.results import add_opening, blend_standalone
from engine.model.embedding_model import EmbeddingModel
from engine.text.chunking import OPENING_TOKENS
from engine.text.tokenizer import TextTokenizer
from engine.training.data import Document, Span
from engine.training.encode import Vectors, ids_of, read_whole, unit, vectors_of, window_spans
from engine.training.pairs import LONGEST_PASSAGE, SHORTEST_PASSAGE, Passage, passages_of
from engine.types import Ids

CUTOFF = 10
"""The reciprocal rank of an answer below this rank is 0."""

PARAGRAPHS_A_DOCUMENT = 4


@dataclass(frozen=True, kw_only=True)
class DocumentLimits:
    """Which documents of a corpus are read: drawn by a hash of their text, within these limits."""

    shortest: int = 1500  # tokens
    longest: int = 20_000
    documents: int = 20  # of each corpus
    tokens: int = 40_000  # of each validation corpus, together
    test_tokens: int = 24_000  # of each test corpus
    passages: int = 10  # asked for, of each document
    chunk: int = 256  # tokens of the chunks that later paragraphs find


@dataclass(frozen=True)
class ReadingDocument:
    """A document to read: ids between special tokens, and what is asked about it."""

    ids: Ids
    title: Ids
    passages: list[Span]
    queries: dict[int, str]  # by the number of the passage that answers
    paragraphs: list[str]  # taken out of the text


def reading_documents(
    corpus: Corpus, tokenizer: TextTokenizer, limits: DocumentLimits = DocumentLimits()
) -> list[ReadingDocument]:
    """The documents that fit the limits, in an order that depends on their text alone."""
    by_hash = sorted(corpus.documents, key=lambda one: hashlib.sha256(one.body.encode()).digest())
    found: list[ReadingDocument] = []
    bodies: set[str] = set()
    room = limits.tokens
    for document in by_hash:
        # A token has four characters or so: most documents need not be tokenized to be left out.
        if document.body in bodies or not (
            2 * limits.shortest <= len(document.body) <= 8 * limits.longest
        ):
            continue
        one = _reading_document(document, tokenizer, limits)
        if limits.shortest <= len(one.ids) <= min(limits.longest, room):
            bodies.add(document.body)
            found.append(one)
            room -= len(one.ids)
        if len(found) == limits.documents:
            break
    return found


def _reading_document(
    document: Document, tokenizer: TextTokenizer, limits: DocumentLimits
) -> ReadingDocument:
    passages = passages_of(document)
    texts, paragraphs = _without_paragraphs([one.text for one in passages] or [document.body])
    title, *parts = [item.content for item in tokenizer.encode_batch([document.title, *texts])]
    ends = tokenizer.num_prefix + np.cumsum([len(title), *map(len, parts)])
    spans = [
        (int(end) - len(part), int(end) - len(part) + min(len(part), LONGEST_PASSAGE))
        for part, end in zip(parts, ends[1:], strict=True)
    ]
    queries: dict[int, str] = {}
    usable = [at for at, (start, end) in enumerate(spans) if end - start >= SHORTEST_PASSAGE]
    if passages:
        asked = Counter(one.query for one in passages)
        answers = [
            number
            for number, at in enumerate(usable)
            if asked[passages[at].query] == 1 and _needs_document(document.title, passages[at])
        ]
        step = max(1, -(-len(answers) // limits.passages))
        queries = {number: passages[usable[number]].query for number in answers[::step]}
    return ReadingDocument(
        ids=tokenizer.between_special(np.concatenate([title, *parts])),
        title=title,
        passages=[spans[at] for at in usable] if passages else [],
        queries=queries,
        paragraphs=paragraphs,
    )


def _needs_document(title: str, passage: Passage) -> bool:
    """Whether the passage has neither the title nor the heading that its query names."""
    heading = passage.query.removeprefix(f"{title}: ")
    text = passage.text.casefold()
    return title.casefold() not in text and heading.casefold() not in text


def _without_paragraphs(texts: Sequence[str]) -> tuple[list[str], list[str]]:
    """The texts, and what was taken out of them: paragraphs of the later half, evenly spread."""
    split = [text.split("\n\n") for text in texts]
    places = [(at, nth) for at, parts in enumerate(split) for nth in range(len(parts))]
    seen = Counter(part.strip() for parts in split for part in parts)
    middle = sum(map(len, texts)) / 2
    before = 0
    fitting: list[tuple[int, int]] = []
    least, most = PARAGRAPH_CHARACTERS
    for at, nth in places:
        paragraph = split[at][nth].strip()
        # The first paragraph of a section stays: without it the section may be about anything.
        if before >= middle and nth and least <= len(paragraph) <= most and seen[paragraph] == 1:
            fitting.append((at, nth))
        before += len(split[at][nth]) + 2
    step = max(1, -(-len(fitting) // PARAGRAPHS_A_DOCUMENT))
    chosen = set(fitting[::step])
    rest = [
        "\n\n".join(part for nth, part in enumerate(parts) if (at, nth) not in chosen)
        for at, parts in enumerate(split)
    ]
    return rest, [split[at][nth].strip() for at, nth in sorted(chosen)]


@dataclass(frozen=True)
class Parts:
    """Vectors of the parts of all documents, one row each."""

    owners: NDArray[np.int64]  # the document of each part
    alone: Vectors
    late: Vectors
    late_without_lln: Vectors


@dataclass(frozen=True)
class Asked:
    """Queries of one kind, and what answers them."""

    vectors: Vectors
    documents: NDArray[np.int64]  # the document that each query is about
    wanted: NDArray[np.int64]  # the passage, or the document
    blocks: NDArray[np.int64]  # between the document's top and the passage; 0 for paragraphs


@dataclass(frozen=True)
class CorpusVectors:
    """All that the readings of one corpus are mixed from."""

    name: str
    num_documents: int
    num_tokens: int
    passages: Parts
    chunks: Parts
    openings: Parts
    titled: Vectors  # the passages with the title put before
    titles: Vectors  # [documents, W]
    means: Vectors  # of each document's chunks read alone
    by_heading: Asked
    by_paragraph: Asked


BLOCK = 256
"""Tokens of a block of a long document in the models that ship."""


def read_corpus(
    model: EmbeddingModel,
    name: str,
    documents: Sequence[ReadingDocument],
    limits: DocumentLimits = DocumentLimits(),
) -> CorpusVectors:
    """Read every document with LLN and without, and every part alone."""
    tokenizer = model.tokenizer
    begin = tokenizer.num_prefix
    openings = [[(0, min(OPENING_TOKENS, len(one.ids)))] for one in documents]
    passages = [one.passages for one in documents]
    chunks = [window_spans(len(one.ids), tokenizer, limits.chunk) for one in documents]
    spans = [[*a, *b, *c] for a, b, c in zip(openings, passages, chunks, strict=True)]
    texts = [one.ids for one in documents]
    late = read_whole(model, texts, spans).late
    without = read_whole(model.with_attention("block_diagonal"), texts, spans).late
    flat = [(at, span) for at, inside in enumerate(spans) for span in inside]
    alone = vectors_of(
        model,
        [tokenizer.between_special(texts[at][max(span[0], begin) : span[1]]) for at, span in flat],
    )
    owners = np.array([at for at, _ in flat], np.int64)
    kinds = np.concatenate(
        [[0] + [1] * len(one) + [2] * len(two) for one, two in zip(passages, chunks, strict=True)]
    )
    opening, passage, chunk = (
        Parts(owners[rows], alone[rows], late[rows], without[rows])
        for rows in (kinds == kind for kind in range(3))
    )
    titled = [
        tokenizer.between_special(np.concatenate([one.title, one.ids[start:end]]))
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
        titled=vectors_of(model, titled),
        titles=vectors_of(model, [tokenizer.between_special(one.title) for one in documents]),
        means=unit(sums),
        by_heading=_by_heading(model, documents),
        by_paragraph=_by_paragraph(model, documents),
    )


def _by_heading(model: EmbeddingModel, documents: Sequence[ReadingDocument]) -> Asked:
    rows = []
    first = 0
    for at, one in enumerate(documents):
        rows += [
            (at, first + number, one.passages[number][0] // BLOCK, query)
            for number, query in one.queries.items()
        ]
        first += len(one.passages)
    return _asked(model, rows)


def _by_paragraph(model: EmbeddingModel, documents: Sequence[ReadingDocument]) -> Asked:
    return _asked(
        model, [(at, at, 0, text) for at, one in enumerate(documents) for text in one.paragraphs]
    )


def _asked(model: EmbeddingModel, rows: Sequence[tuple[int, int, int, str]]) -> Asked:
    numbers = np.array([row[:3] for row in rows], np.int64).reshape(len(rows), 3)
    vectors = vectors_of(model, ids_of([row[3] for row in rows], model.tokenizer))
    return Asked(vectors, *numbers.T)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A way to read a part of a document: shares of what its vector is made of."""

    late: float = 0.0  # the rest is the part read alone
    without_lln: bool = False
    title_before: bool = False
    opening: float = 0.0
    mean: float = 0.0
    title: float = 0.0

    def vectors(self, corpus: CorpusVectors, parts: Parts) -> Vectors:
        if self.title_before:
            return corpus.titled
        mixed = self._mixed(parts)
        added = (
            (self.opening, self._mixed(corpus.openings)),
            (self.mean, corpus.means),
            (self.title, corpus.titles),
        )
        for share, vectors in added:
            if share:
                by_document = [
                    add_opening(mixed[parts.owners == at], vectors[at], share)
                    for at in range(corpus.num_documents)
                ]
                mixed = np.concatenate(by_document)
        return unit(mixed)

    def _mixed(self, parts: Parts) -> Vectors:
        late = parts.late_without_lln if self.without_lln else parts.late
        return unit(blend_standalone(late, parts.alone, 1 - self.late))


def answers_by_heading(corpus: CorpusVectors, reading: Reading) -> Answers:
    """The reciprocal rank of each query's passage among all passages of the corpus."""
    asked = corpus.by_heading
    scores = asked.vectors @ reading.vectors(corpus, corpus.passages).T
    return Answers(_reciprocal_ranks(scores, asked.wanted), asked.documents)


def answers_by_paragraph(corpus: CorpusVectors, reading: Reading) -> Answers:
    """The reciprocal rank of each paragraph's document, which is as good as its best chunk."""
    asked = corpus.by_paragraph
    by_chunk = asked.vectors @ reading.vectors(corpus, corpus.chunks).T
    starts = np.flatnonzero(np.diff(corpus.chunks.owners, prepend=-1))
    scores = np.maximum.reduceat(by_chunk, starts, axis=1)
    return Answers(_reciprocal_ranks(scores, asked.wanted), asked.documents)


def _reciprocal_ranks(
    scores: NDArray[np.float32], wanted: NDArray[np.int64]
) -> NDArray[np.float64]:
    if not len(wanted):
        return np.zeros(0)
    ranks = ranks_of(scores, wanted.tolist())
    values: NDArray[np.float64] = np.where(ranks <= CUTOFF, 1 / ranks, 0.0)
    return values
