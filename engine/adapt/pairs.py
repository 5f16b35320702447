"""Queries beside what they should find: whole documents, or passages that need their document."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from engine.adapt.batches import Batch
from engine.adapt.documents import Document
from engine.errors import InvalidInput
from engine.text.headings import sections
from engine.text.tokenizer import TextTokenizer
from engine.types import Ids

Span: TypeAlias = tuple[int, int]

SHORTEST_PASSAGE, LONGEST_PASSAGE = 24, 200
"""In tokens. Of a longer section the beginning is the passage."""
QUERIES_A_DOCUMENT = 4
_FEWEST_SECTIONS = 3
_HEADING_LINES = 9  # a longer paragraph with a line of marks below is no heading


@dataclass(frozen=True)
class Passage:
    """What stands below a heading, and a query that names its document and the heading."""

    query: str
    text: str


def passages_of(document: Document) -> list[Passage]:
    """A titled document's sections without their headings; empty where there are too few.

    The title names what the passages do not say themselves, so that to be found they must know
    where they stand.
    """
    if not document.title:
        return []
    found = [
        Passage(f"{document.title}: {section.headings[-1]}", text)
        for section in sections(document.body, "auto")
        if section.headings
        and (text := _below_heading(document.body[slice(*section.characters)]).strip())
    ]
    return found if len(found) >= _FEWEST_SECTIONS else []


def _below_heading(text: str) -> str:
    lines = text.splitlines(keepends=True)
    for at, line in enumerate(lines[1:_HEADING_LINES], start=1):
        if not line.strip():
            break
        if not any(character.isalnum() for character in line):
            return "".join(lines[at + 1 :])
    return "".join(lines[1:])


@dataclass(frozen=True)
class PairBatch:
    """Queries, and documents in which each has one span to find."""

    queries: Batch
    documents: Batch
    spans: list[Span]  # rows of the documents' states, each pooled to one vector
    wanted: list[int]  # each query's span
    source: int  # all are of one corpus, whose documents are alike
    owners: list[int]  # the document of each span, by its number


@dataclass(frozen=True)
class _Paired:
    """A document as ids without special tokens."""

    query: Ids
    body: Ids
    title: Ids
    questions: tuple[Ids, ...]
    passages: tuple[Ids, ...]


class PairCorpus:
    """Documents that have queries, from one or several sources."""

    def __init__(self, sources: Mapping[str, Sequence[Document]], tokenizer: TextTokenizer) -> None:
        self._prefix, self._suffix = tokenizer.prefix_ids, tokenizer.suffix_ids
        self._sources = [
            list(_paired([one for one in documents if one.query or one.title], tokenizer))
            for documents in sources.values()
        ]

    def documents(self, length: int, tokens: int, generator: np.random.Generator) -> PairBatch:
        """Queries with whole documents, of longer ones a window of `length` tokens."""
        source, chosen = self._draw(generator, lambda one: len(one.query) > 0)
        room = length - self._num_special
        queries, texts, owners = [], [], []
        for number in chosen:
            one = self._sources[source][number]
            body = _window(one.body, room, generator)
            if tokens < len(body):
                break
            tokens -= len(body)
            queries.append(one.query)
            texts.append(body)
            owners.append(number)
        documents = self._packed(texts)
        return PairBatch(
            queries=self._packed(queries),
            documents=documents,
            spans=documents.spans,
            wanted=list(range(len(texts))),
            source=source,
            owners=owners,
        )

    def passages(self, length: int, tokens: int, generator: np.random.Generator) -> PairBatch:
        """Queries with passages read within their documents: title first, then some passages in
        a row, `length` tokens at most."""
        source, chosen = self._draw(generator, lambda one: len(one.passages) > 0)
        queries: list[Ids] = []
        texts: list[Ids] = []
        spans: list[Span] = []
        wanted: list[int] = []
        owners: list[int] = []
        at = 0
        for number in chosen:
            one = self._sources[source][number]
            first, end = _some_in_a_row(one, length - self._num_special, generator)
            parts = (one.title, *one.passages[first:end])
            text = np.concatenate(parts)[: length - self._num_special]
            if tokens < len(text):
                break
            inside = list(_spans(parts, len(text)))
            usable = [index for index, (start, stop) in enumerate(inside) if _fits(start, stop)]
            if not usable:
                continue
            tokens -= len(text)
            asked = generator.permutation(usable)[:QUERIES_A_DOCUMENT].tolist()
            place = {index: len(spans) + nth for nth, index in enumerate(usable)}
            begin = at + len(self._prefix)
            spans += [(begin + inside[index][0], begin + inside[index][1]) for index in usable]
            owners += [number] * len(usable)
            queries += [one.questions[first + index] for index in asked]
            wanted += [place[index] for index in asked]
            texts.append(text)
            at += len(text) + self._num_special
        return PairBatch(
            queries=self._packed(queries),
            documents=self._packed(texts),
            spans=spans,
            wanted=wanted,
            source=source,
            owners=owners,
        )

    @property
    def _num_special(self) -> int:
        return len(self._prefix) + len(self._suffix)

    def _draw(
        self, generator: np.random.Generator, usable: Callable[[_Paired], bool]
    ) -> tuple[int, list[int]]:
        """A source, larger ones more often, and its usable documents in a new order."""
        numbers = [
            [number for number, one in enumerate(source) if usable(one)] for source in self._sources
        ]
        weights = np.array([len(found) ** 0.5 if len(found) > 1 else 0.0 for found in numbers])
        if not weights.any():
            raise InvalidInput(
                "no two documents of one source have what this stage asks of them",
                code="too_little_text",
                param="data",
            )
        source = int(generator.choice(len(numbers), p=weights / weights.sum()))
        return source, generator.permutation(numbers[source]).tolist()

    def _packed(self, texts: Sequence[Ids]) -> Batch:
        whole = [np.concatenate([self._prefix, text, self._suffix]) for text in texts]
        bounds = list(accumulate((len(text) for text in whole), initial=0))
        return Batch(torch.from_numpy(np.concatenate(whole).astype(np.int64)), bounds)


def _paired(documents: Sequence[Document], tokenizer: TextTokenizer) -> Iterator[_Paired]:
    headed = [passages_of(document) for document in documents]
    flat = [passage for passages in headed for passage in passages]
    bodies = _contents([document.body for document in documents], tokenizer)
    titles = _contents([document.title for document in documents], tokenizer)
    queries = _contents([one.query or one.title for one in documents], tokenizer)
    questions = iter(_contents([passage.query for passage in flat], tokenizer))
    texts = iter(_contents([passage.text for passage in flat], tokenizer))
    for query, body, title, passages in zip(queries, bodies, titles, headed, strict=True):
        yield _Paired(
            query=query,
            body=body,
            title=title,
            questions=tuple(next(questions) for _ in passages),
            passages=tuple(next(texts) for _ in passages),
        )


def _contents(texts: Sequence[str], tokenizer: TextTokenizer) -> list[Ids]:
    return [
        item.ids[item.num_prefix : item.num_tokens - item.num_suffix]
        for item in tokenizer.encode_batch(list(texts))
    ]


def _window(ids: Ids, size: int, generator: np.random.Generator) -> Ids:
    """All of a short text; of a long one the beginning as often as any other part."""
    if len(ids) <= size:
        return ids
    start = int(generator.integers(0, len(ids) - size + 1)) if generator.random() < 0.5 else 0
    return ids[start : start + size]


def _some_in_a_row(one: _Paired, room: int, generator: np.random.Generator) -> tuple[int, int]:
    """As many passages as there is room for, from one drawn at random on."""
    sizes: NDArray[np.int64] = np.array([len(passage) for passage in one.passages])
    fitting = np.flatnonzero(np.cumsum(sizes[::-1])[::-1] >= min(room, int(sizes.sum())) // 2)
    first = int(generator.choice(fitting)) if len(fitting) else 0
    used = np.cumsum(sizes[first:])
    return first, first + int(np.searchsorted(used, room - len(one.title))) + 1


def _spans(parts: Sequence[Ids], length: int) -> Iterator[Span]:
    """The passages' places within the document, behind its title; cut to a passage's length."""
    starts = list(accumulate((len(part) for part in parts), initial=0))
    for start, end in pairwise(starts[1:]):
        yield start, min(end, start + LONGEST_PASSAGE, length)


def _fits(start: int, end: int) -> bool:
    return end - start >= SHORTEST_PASSAGE
