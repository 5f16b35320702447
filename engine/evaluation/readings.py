"""Readings of a passage, from alone to within its whole document, as vectors to compare.

Every document is its title and its text without headings. Three kinds of question find its parts:

- passages that need their document: the query is the title and a heading, the answer the text
  below that heading, which contains neither. The title stands at the document's top only.
- the same in texts without headings: the query is the title and a paragraph's first sentence, which
  is taken out of it, and the answer is the rest of the paragraph.
- a later paragraph: it is taken out of the document's later half, and the document that has the
  best chunk of 256 tokens answers it.

One pass over each document gives the vectors of all, and each part is read alone besides.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from engine.evaluation.bootstrap import Answers
from engine.evaluation.corpora import PARAGRAPH_CHARACTERS, Corpus
from engine.evaluation.retrieval import ranks_of
from engine.evaluation.vector_store import VectorStore
from engine.execution.results import add_opening, blend_standalone
from engine.model.embedding_model import EmbeddingModel
from engine.text.chunking import OPENING_TOKENS
from engine.text.tokenizer import TextTokenizer
from engine.training.data import Document, Span
from engine.training.encode import Vectors, ids_of, unit, window_spans
from engine.training.pairs import LONGEST_PASSAGE, SHORTEST_PASSAGE, Passage, passages_of
from engine.types import Ids

CUTOFF = 10
"""The reciprocal rank of an answer below this rank is 0."""

PARAGRAPHS_A_DOCUMENT = 4
_LEAST_LED = 3  # paragraphs with a first sentence to ask by


@dataclass(frozen=True, kw_only=True)
class DocumentLimits:
    """Which documents of a corpus are read: drawn by a hash of their text, within these limits."""

    shortest: int = 1500  # tokens
    longest: int = 20_000
    documents: int = 45  # of each corpus
    tokens: int = 40_000  # of each corpus, together
    passages: int = 10  # asked for, of each document
    chunk: int = 256  # tokens of the chunks that later paragraphs find


@dataclass(frozen=True)
class ReadingDocument:
    """A document to read: ids between special tokens, and what is asked about it."""

    ids: Ids
    title: Ids
    passages: list[Span]
    queries: dict[int, str]  # by the number of the passage that answers
    is_headed: bool  # queries name headings, not first sentences
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
    headed = passages_of(document)
    passages = headed or led_passages(document)
    texts, paragraphs = _without_paragraphs(
        [one.text for one in passages] or [document.body], keeps_first=bool(headed)
    )
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
            if passages[at].query
            and asked[passages[at].query] == 1
            and _needs_document(document.title, passages[at])
        ]
        step = max(1, -(-len(answers) // limits.passages))
        queries = {number: passages[usable[number]].query for number in answers[::step]}
    return ReadingDocument(
        ids=tokenizer.between_special(np.concatenate([title, *parts])),
        title=title,
        passages=[spans[at] for at in usable] if passages else [],
        queries=queries,
        is_headed=bool(headed),
        paragraphs=paragraphs,
    )


_SENTENCE = re.compile(r"(\S.{20,200}?[.!?])\s+(?=\S)", re.DOTALL)
_SHORTEST_REST = 200  # characters of a paragraph without its first sentence


def led_passages(document: Document) -> list[Passage]:
    """The paragraphs of a titled text without headings. Those that are long enough lose their first
    sentence, which asks for the rest; the others are not asked for."""
    if not document.title:
        return []
    found = []
    for paragraph in document.body.split("\n\n"):
        text = paragraph.strip()
        lead = _SENTENCE.match(text)
        if lead is None or len(text) - lead.end() < _SHORTEST_REST:
            found.append(Passage("", text))
        else:
            query = f"{document.title}: {' '.join(lead[1].split())}"
            found.append(Passage(query, text[lead.end() :]))
    return found if sum(bool(one.query) for one in found) >= _LEAST_LED else []


def _needs_document(title: str, passage: Passage) -> bool:
    """Whether the passage has neither the title nor the heading that its query names."""
    heading = passage.query.removeprefix(f"{title}: ")
    text = passage.text.casefold()
    return title.casefold() not in text and heading.casefold() not in text


def _without_paragraphs(texts: Sequence[str], *, keeps_first: bool) -> tuple[list[str], list[str]]:
    """The texts, and what was taken out of them: paragraphs of the later half, evenly spread.

    The first paragraph of a section stays: without it the section may be about anything.
    """
    split = [text.split("\n\n") for text in texts]
    places = [(at, nth) for at, parts in enumerate(split) for nth in range(len(parts))]
    seen = Counter(part.strip() for parts in split for part in parts)
    middle = sum(map(len, texts)) / 2
    before = 0
    fitting: list[tuple[int, int]] = []
    least, most = PARAGRAPH_CHARACTERS
    for at, nth in places:
        paragraph = split[at][nth].strip()
        may_go = before >= middle and (nth or not keeps_first)
        if may_go and least <= len(paragraph) <= most and seen[paragraph] == 1:
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
    is_headed: NDArray[np.bool_]


PartKind: TypeAlias = Literal["passages", "chunks", "openings"]


@dataclass(frozen=True)
class OnePass:
    """What one pass of another model gives."""

    passages: Vectors
    chunks: Vectors
    openings: Vectors
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
    openings: Parts
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
    limits: DocumentLimits = DocumentLimits(),
    others: Mapping[str, EmbeddingModel] | None = None,
    store: VectorStore | None = None,
) -> CorpusVectors:
    """Read every document with LLN and without, every part alone, and every document once by each
    of the other models."""
    store = store or VectorStore()
    texts = [one.ids for one in documents]
    placed = _PlacedParts(documents, model.tokenizer, limits)
    with_lln = store.read_whole(model, texts, placed.spans)
    without = store.read_whole(model.with_attention("block_diagonal"), texts, placed.spans)
    alone = store.vectors_of(model, placed.alone(texts, model.tokenizer))
    opening, passage, chunk = (
        Parts(placed.owners[rows], alone[rows], with_lln.late[rows], without.late[rows])
        for rows in (placed.kinds == kind for kind in range(3))
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
        titled=store.vectors_of(model, titled),
        titles=store.vectors_of(model, [between(one.title) for one in documents]),
        means=unit(sums),
        wholes=with_lln.whole,
        wholes_without_lln=without.whole,
        by_heading=_asked(model, _heading_rows(documents), store),
        by_paragraph=_asked(model, _paragraph_rows(documents), store),
        others={
            label: _one_pass(other, documents, placed, store)
            for label, other in (others or {}).items()
        },
    )


class _PlacedParts:
    """Where the openings, passages and chunks of documents are, in one list."""

    def __init__(
        self,
        documents: Sequence[ReadingDocument],
        tokenizer: TextTokenizer,
        limits: DocumentLimits,
    ) -> None:
        openings = [[(0, min(OPENING_TOKENS, len(one.ids)))] for one in documents]
        passages = [one.passages for one in documents]
        chunks = [window_spans(len(one.ids), tokenizer, limits.chunk) for one in documents]
        by_document = list(zip(openings, passages, chunks, strict=True))
        self.spans = [[*a, *b, *c] for a, b, c in by_document]
        self.owners = np.repeat(np.arange(len(documents)), [len(one) for one in self.spans])
        self.kinds = np.concatenate(
            [np.repeat([0, 1, 2], [len(a), len(b), len(c)]) for a, b, c in by_document]
        )

    def alone(self, texts: Sequence[Ids], tokenizer: TextTokenizer) -> list[Ids]:
        return [
            tokenizer.between_special(text[max(start, tokenizer.num_prefix) : end])
            for text, inside in zip(texts, self.spans, strict=True)
            for start, end in inside
        ]


def _one_pass(
    model: EmbeddingModel,
    documents: Sequence[ReadingDocument],
    placed: _PlacedParts,
    store: VectorStore,
) -> OnePass:
    read = store.read_whole(model, [one.ids for one in documents], placed.spans)
    openings, passages, chunks = (read.late[placed.kinds == kind] for kind in range(3))
    return OnePass(
        passages=passages,
        chunks=chunks,
        openings=openings,
        wholes=read.whole,
        heading_queries=_asked(model, _heading_rows(documents), store).vectors,
        paragraph_queries=_asked(model, _paragraph_rows(documents), store).vectors,
    )


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


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A way to read a part of a document: shares of what its vector is made of."""

    late: float = 0.0  # the rest is the part read alone
    without_lln: bool = False
    title_before: bool = False
    opening: float = 0.0
    mean: float = 0.0
    title: float = 0.0
    model: str = ""  # another model's late chunks, which read nothing alone

    def vectors(self, corpus: CorpusVectors, kind: PartKind) -> Vectors:
        if self.title_before:
            return corpus.titled
        mixed = self._mixed(corpus, kind)
        owners = getattr(corpus, kind).owners
        added = (
            (self.opening, self._mixed(corpus, "openings")),
            (self.mean, corpus.means),
            (self.title, corpus.titles),
        )
        for share, vectors in added:
            if share:
                by_document = [
                    add_opening(mixed[owners == at], vectors[at], share)
                    for at in range(corpus.num_documents)
                ]
                mixed = np.concatenate(by_document)
        return unit(mixed)

    def wholes(self, corpus: CorpusVectors) -> Vectors:
        """Vectors of the whole documents."""
        if self.model:
            return corpus.others[self.model].wholes
        if not self.late:
            return corpus.means
        return corpus.wholes_without_lln if self.without_lln else corpus.wholes

    def heading_queries(self, corpus: CorpusVectors) -> Vectors:
        other = corpus.others.get(self.model)
        return corpus.by_heading.vectors if other is None else other.heading_queries

    def paragraph_queries(self, corpus: CorpusVectors) -> Vectors:
        other = corpus.others.get(self.model)
        return corpus.by_paragraph.vectors if other is None else other.paragraph_queries

    def _mixed(self, corpus: CorpusVectors, kind: PartKind) -> Vectors:
        if self.model:
            late: Vectors = getattr(corpus.others[self.model], kind)
            return late
        parts: Parts = getattr(corpus, kind)
        late = parts.late_without_lln if self.without_lln else parts.late
        return unit(blend_standalone(late, parts.alone, 1 - self.late))


def answers_by_heading(corpus: CorpusVectors, reading: Reading) -> Answers:
    """The reciprocal rank of each query's passage among all passages of the corpus."""
    asked = corpus.by_heading
    scores = reading.heading_queries(corpus) @ reading.vectors(corpus, "passages").T
    return Answers(_reciprocal_ranks(scores, asked.wanted), asked.documents)


def answers_by_paragraph(corpus: CorpusVectors, reading: Reading) -> Answers:
    """The reciprocal rank of each paragraph's document, which is as good as its best chunk."""
    asked = corpus.by_paragraph
    by_chunk = reading.paragraph_queries(corpus) @ reading.vectors(corpus, "chunks").T
    starts = np.flatnonzero(np.diff(corpus.chunks.owners, prepend=-1))
    scores = np.maximum.reduceat(by_chunk, starts, axis=1)
    return Answers(_reciprocal_ranks(scores, asked.wanted), asked.documents)


def answers_by_paragraph_whole(corpus: CorpusVectors, reading: Reading) -> Answers:
    """The same with one vector for each whole document."""
    scores = reading.paragraph_queries(corpus) @ reading.wholes(corpus).T
    asked = corpus.by_paragraph
    return Answers(_reciprocal_ranks(scores, asked.wanted), asked.documents)


def _reciprocal_ranks(
    scores: NDArray[np.float32], wanted: NDArray[np.int64]
) -> NDArray[np.float64]:
    if not len(wanted):
        return np.zeros(0)
    ranks = ranks_of(scores, wanted.tolist())
    values: NDArray[np.float64] = np.where(ranks <= CUTOFF, 1 / ranks, 0.0)
    return values
