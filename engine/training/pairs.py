"""Queries paired with what they should find: whole documents, or passages inside documents."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from engine.errors import InvalidInput
from engine.text.headings import sections
from engine.text.tokenizer import TextTokenizer
from engine.training.data import Batch, Document, Span, packed
from engine.types import Ids

SHORTEST_PASSAGE, LONGEST_PASSAGE = 24, 200
"""In tokens. A longer section's beginning is its passage."""

QUERIES_A_DOCUMENT = 4
CUT_TOKENS = 64
"""The length of the stretch that is cut out of a document without a query, and must find it."""

STRETCH_TOKENS = (32, 192)
"""The shortest and longest of the stretches that stay in their document and should find it."""

_MIN_SECTIONS = 3
_MAX_HEADING_LINES = 9  # a longer paragraph above a line of marks is no heading


@dataclass(frozen=True)
class Passage:
    """The text below a heading, and a query that names the document and the heading."""

    query: str
    text: str


def passages_of(document: Document) -> list[Passage]:
    """The sections of a titled document, without their headings; none if there are too few.

    A query names the title and the heading, which the passage itself does not contain. It is found
    only if its vector knows the document around it.
    """
    if not document.title:
        return []
    found = [
        Passage(f"{document.title}: {section.headings[-1]}", text)
        for section in sections(document.body, "auto")
        if section.headings
        and (text := _below_heading(document.body[slice(*section.characters)]).strip())
    ]
    return found if len(found) >= _MIN_SECTIONS else []


def _below_heading(text: str) -> str:
    lines = text.splitlines(keepends=True)
    for at, line in enumerate(lines[1:_MAX_HEADING_LINES], start=1):
        if not line.strip():
            break
        if not any(character.isalnum() for character in line):
            return "".join(lines[at + 1 :])
    return "".join(lines[1:])


@dataclass(frozen=True)
class PairBatch:
    """Queries, and documents with a span for each query to find."""

    queries: Batch
    documents: Batch
    spans: list[Span]  # rows of the documents' states, each pooled to one vector
    targets: list[int]  # the span that each query should find
    source: int  # all documents are from one source, and alike
    owners: list[int]  # each span's text: the number of the first document that has it
    stretches: Batch | None = None  # more queries: stretches of the documents
    stretch_targets: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class _TokenDocument:
    """A document as ids without special tokens."""

    text: int  # the same number for all documents of the source with the same text
    query: Ids  # empty if it has none
    body: Ids
    title: Ids
    passage_queries: tuple[Ids, ...]
    passages: tuple[Ids, ...]

    @property
    def can_be_found(self) -> bool:
        return bool(self.query.size) or len(self.body) >= 2 * CUT_TOKENS

    @property
    def has_passages(self) -> bool:
        return any(len(passage) >= SHORTEST_PASSAGE for passage in self.passages)

    @property
    def longest(self) -> int:
        """The most tokens that are read of it at once."""
        return len(self.title) + len(self.body)

    @property
    def longest_query(self) -> int:
        cut = min(CUT_TOKENS, len(self.body))
        return max(len(self.query) or cut, *map(len, self.passage_queries), 0)


class PairCorpus:
    """Documents of one or several sources, and the queries that should find them."""

    def __init__(self, sources: Mapping[str, Sequence[Document]], tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._sources = [
            list(_token_documents(documents, tokenizer)) for documents in sources.values()
        ]
        self._with_passages = self._numbers(lambda one: one.has_passages)
        self._findable: dict[int, list[list[int]]] = {}
        self.check_documents()

    def check_documents(self, shortest: int = 0) -> None:
        """Reject data without two documents that queries can tell apart."""
        if any(self._findable_documents(shortest)):
            return
        of_length = f" of at least {shortest} tokens" if shortest else ""
        raise InvalidInput(
            f"no source has two documents{of_length} with a query, a title or {2 * CUT_TOKENS} "
            "tokens",
            code="too_little_text",
            param="data",
            limit=shortest or None,
        )

    def _findable_documents(self, shortest: int) -> list[list[int]]:
        """By source, the documents of at least so many tokens that a query can find."""
        if shortest not in self._findable:
            self._findable[shortest] = self._numbers(
                lambda one: one.can_be_found and len(one.body) >= shortest
            )
        return self._findable[shortest]

    @property
    def has_passages(self) -> bool:
        return any(self._with_passages)

    def longest(self, length: int) -> int:
        """Tokens of the longest document or query in batches of this length."""
        every = [one for source in self._sources for one in source]
        queries = max(one.longest_query for one in every) + self._tokenizer.num_special
        documents = max(one.longest for one in every) + self._tokenizer.num_special
        return max(queries, min(documents, length))

    def documents(
        self,
        length: int,
        tokens: int,
        generator: np.random.Generator,
        *,
        cut_share: float = 0.0,
        stretches: int = 0,
        shortest: int = 0,
    ) -> PairBatch:
        """Draw queries and whole documents; of a document beyond `length`, a window of that length.

        `cut_share` of the documents with a query get a stretch, cut out of them, in its place.
        `stretches` of each document, which stay in it, are more queries.
        """
        source, chosen = draw_source(self._findable_documents(shortest), generator)
        room = length - self._tokenizer.num_special
        queries, texts, owners = [], [], []
        asking: list[Ids] = []
        for one in self._of_different_texts(source, chosen):
            body = _window(one.body, room, generator)
            if tokens < len(body):
                break
            tokens -= len(body)
            query, body = _query_and_body(one.query, body, cut_share, generator)
            queries.append(query)
            texts.append(body)
            owners.append(one.text)
            asking += [_stretch(body, generator) for _ in range(stretches)]
        documents = self._packed(texts)
        return PairBatch(
            queries=self._packed(queries),
            documents=documents,
            spans=documents.spans,
            targets=list(range(len(texts))),
            source=source,
            owners=owners,
            stretches=self._packed(asking) if asking else None,
            stretch_targets=[number for number in range(len(texts)) for _ in range(stretches)],
        )

    def passages(
        self, length: int, tokens: int, generator: np.random.Generator
    ) -> PairBatch | None:
        """Draw queries and passages, which are read inside their documents.

        A document is its title and some passages in a row, at most `length` tokens. None if all
        documents that were drawn are too short.
        """
        source, chosen = draw_source(self._with_passages, generator)
        room = length - self._tokenizer.num_special
        queries: list[Ids] = []
        texts: list[Ids] = []
        spans: list[Span] = []
        targets: list[int] = []
        owners: list[int] = []
        at = 0
        for one in self._of_different_texts(source, chosen):
            first, end = _some_in_a_row(one, room, generator)
            parts = (one.title, *one.passages[first:end])
            text = np.concatenate(parts)[:room]
            if tokens < len(text):
                break
            inside = passage_spans(parts, len(text))
            usable = [index for index, span in enumerate(inside) if is_long_enough(span)]
            if not usable:
                continue
            tokens -= len(text)
            asked = generator.permutation(usable)[:QUERIES_A_DOCUMENT].tolist()
            place = {index: len(spans) + nth for nth, index in enumerate(usable)}
            begin = at + self._tokenizer.num_prefix
            spans += [(begin + inside[index][0], begin + inside[index][1]) for index in usable]
            owners += [one.text] * len(usable)
            queries += [one.passage_queries[first + index] for index in asked]
            targets += [place[index] for index in asked]
            texts.append(text)
            at += len(text) + self._tokenizer.num_special
        if not texts:
            return None
        return PairBatch(
            queries=self._packed(queries),
            documents=self._packed(texts),
            spans=spans,
            targets=targets,
            source=source,
            owners=owners,
        )

    def _of_different_texts(self, source: int, numbers: Sequence[int]) -> Iterator[_TokenDocument]:
        """Documents whose text has not come before in the batch: a text with several queries must
        not be a wrong answer to any of them."""
        seen: set[int] = set()
        for number in numbers:
            one = self._sources[source][number]
            if one.text not in seen:
                seen.add(one.text)
                yield one

    def _numbers(self, usable: Callable[[_TokenDocument], bool]) -> list[list[int]]:
        """By source, the usable documents; none if they all have one text, since a query then has
        nothing to choose from."""
        return [
            [at for at, one in enumerate(source) if usable(one)]
            if len({one.text for one in source if usable(one)}) > 1
            else []
            for source in self._sources
        ]

    def _packed(self, texts: Sequence[Ids]) -> Batch:
        return packed(texts, self._tokenizer)


def draw_source(
    numbers: Sequence[Sequence[int]], generator: np.random.Generator
) -> tuple[int, list[int]]:
    """Draw a source, larger ones more often, and shuffle its documents."""
    weights = np.sqrt([len(found) for found in numbers])
    source = int(generator.choice(len(numbers), p=weights / weights.sum()))
    return source, generator.permutation(numbers[source]).tolist()


def _token_documents(
    documents: Sequence[Document], tokenizer: TextTokenizer
) -> Iterator[_TokenDocument]:
    headed = [passages_of(document) for document in documents]
    flat = [passage for passages in headed for passage in passages]
    bodies = _contents([document.body for document in documents], tokenizer)
    titles = _contents([document.title for document in documents], tokenizer)
    queries = _contents([one.query or one.title for one in documents], tokenizer)
    passage_queries = iter(_contents([passage.query for passage in flat], tokenizer))
    texts = iter(_contents([passage.text for passage in flat], tokenizer))
    numbers = _text_numbers(documents)
    for number, query, body, title, passages in zip(
        numbers, queries, bodies, titles, headed, strict=True
    ):
        yield _TokenDocument(
            text=number,
            query=query,
            body=body,
            title=title,
            passage_queries=tuple(next(passage_queries) for _ in passages),
            passages=tuple(next(texts) for _ in passages),
        )


def _text_numbers(documents: Sequence[Document]) -> list[int]:
    """For each document, the number of the first document with the same text."""
    first: dict[str, int] = {}
    return [first.setdefault(one.body, number) for number, one in enumerate(documents)]


def _contents(texts: Sequence[str], tokenizer: TextTokenizer) -> list[Ids]:
    return [item.content for item in tokenizer.encode_batch(list(texts))]


def _window(ids: Ids, size: int, generator: np.random.Generator) -> Ids:
    """A short text whole; of a long one its beginning or, as often, any other part."""
    if len(ids) <= size:
        return ids
    start = int(generator.integers(0, len(ids) - size + 1)) if generator.random() < 0.5 else 0
    return ids[start : start + size]


def _query_and_body(
    query: Ids, body: Ids, cut_share: float, generator: np.random.Generator
) -> tuple[Ids, Ids]:
    if not query.size:
        return _cut(body, generator)
    # Without a cut_share nothing is drawn: older recipes must draw what they always drew.
    is_cut = cut_share and len(body) >= 2 * CUT_TOKENS and generator.random() < cut_share
    return _cut(body, generator) if is_cut else (query, body)


def _cut(body: Ids, generator: np.random.Generator) -> tuple[Ids, Ids]:
    """A stretch of a text, and the text without it."""
    size = min(CUT_TOKENS, len(body) // 2)
    start = int(generator.integers(0, len(body) - size + 1))
    end = start + size
    return body[start:end], np.concatenate([body[:start], body[end:]])


def _stretch(body: Ids, generator: np.random.Generator) -> Ids:
    """A stretch of a text; its length is uniform in the logarithm."""
    least, most = np.log(STRETCH_TOKENS)
    size = min(round(np.exp(generator.uniform(least, most))), len(body))
    start = int(generator.integers(0, len(body) - size + 1))
    return body[start : start + size]


def _some_in_a_row(
    one: _TokenDocument, room: int, generator: np.random.Generator
) -> tuple[int, int]:
    """The first passage, drawn at random, and the end of as many as there is room for."""
    sizes: NDArray[np.int64] = np.array([len(passage) for passage in one.passages])
    fitting = np.flatnonzero(np.cumsum(sizes[::-1])[::-1] >= min(room, int(sizes.sum())) // 2)
    first = int(generator.choice(fitting)) if len(fitting) else 0
    used = np.cumsum(sizes[first:])
    return first, first + int(np.searchsorted(used, room - len(one.title))) + 1


def passage_spans(parts: Sequence[Ids], length: int | None = None) -> list[Span]:
    """Where the passages are in a document of `length` tokens: its title, then the passages.

    Spans are cut to the length of a passage.
    """
    starts = list(accumulate((len(part) for part in parts), initial=0))
    end_of_text = starts[-1] if length is None else length
    return [
        (start, min(end, start + LONGEST_PASSAGE, end_of_text))
        for start, end in pairwise(starts[1:])
    ]


def is_long_enough(span: Span) -> bool:
    return span[1] - span[0] >= SHORTEST_PASSAGE
