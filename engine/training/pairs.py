"""Queries paired with what they should find: whole documents, or passages inside documents."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.errors import InvalidInput
from engine.text.tokenizer import TextTokenizer
from engine.training.data import Document
from engine.training.heading_passages import (
    is_long_enough,
    passage_spans,
)
from engine.training.token_corpus import Batch, TokenRange, packed
from engine.training.token_documents import CUT_TOKENS, TokenDocument, token_documents
from engine.types import Ids

QUERIES_A_DOCUMENT = 4
STRETCH_TOKENS = (32, 192)
"""The shortest and longest of the stretches that stay in their document and should find it."""


@dataclass(frozen=True)
class PairBatch:
    """Queries, and documents with a span for each query to find."""

    queries: Batch
    documents: Batch
    spans: list[TokenRange]  # rows of the documents' states, each pooled to one vector
    targets: list[int]  # the span that each query should find
    source: int  # all documents are from one source, and alike
    owners: list[int]  # each span's text: the number of the first document that has it
    stretches: Batch | None = None  # more queries: stretches of the documents
    stretch_targets: list[int] = field(default_factory=list)


class _ReadPassages(NamedTuple):
    """A document's title and some of its passages in a row, which are read together."""

    document: TokenDocument
    first: int  # of its passages
    text: Ids
    spans: list[TokenRange]  # of those passages in the text

    @property
    def usable(self) -> list[int]:
        """Which of the spans are long enough to be found."""
        return [index for index, span in enumerate(self.spans) if is_long_enough(span)]


class PairCorpus:
    """Documents of one or several sources, and the queries that should find them."""

    def __init__(self, sources: Mapping[str, Sequence[Document]], tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._sources = [
            list(token_documents(documents, tokenizer)) for documents in sources.values()
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
        """The documents of at least this many tokens that a query can find, by source."""
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
        drawn: list[_ReadPassages] = []
        asked: list[list[int]] = []
        for one in self._of_different_texts(source, chosen):
            read = _some_in_a_row(one, room, generator)
            if tokens < len(read.text):
                break
            if not read.usable:
                continue
            tokens -= len(read.text)
            drawn.append(read)
            asked.append(generator.permutation(read.usable)[:QUERIES_A_DOCUMENT].tolist())
        return self._passage_batch(source, drawn, asked) if drawn else None

    def _passage_batch(
        self, source: int, drawn: Sequence[_ReadPassages], asked: Sequence[Sequence[int]]
    ) -> PairBatch:
        """All usable passages can be found, and those that are `asked` for have a query."""
        queries: list[Ids] = []
        spans: list[TokenRange] = []
        targets: list[int] = []
        owners: list[int] = []
        begin = self._tokenizer.num_prefix
        for read, indices in zip(drawn, asked, strict=True):
            place = {index: len(spans) + nth for nth, index in enumerate(read.usable)}
            targets += [place[index] for index in indices]
            queries += [read.document.passage_queries[read.first + index] for index in indices]
            inside = [read.spans[index] for index in read.usable]
            spans += [(begin + start, begin + end) for start, end in inside]
            owners += [read.document.text] * len(inside)
            begin += len(read.text) + self._tokenizer.num_special
        return PairBatch(
            queries=self._packed(queries),
            documents=self._packed([read.text for read in drawn]),
            spans=spans,
            targets=targets,
            source=source,
            owners=owners,
        )

    def _of_different_texts(self, source: int, numbers: Sequence[int]) -> Iterator[TokenDocument]:
        """Documents whose text has not come before in the batch: a text with several queries must
        not be a wrong answer to any of them."""
        seen: set[int] = set()
        for number in numbers:
            one = self._sources[source][number]
            if one.text not in seen:
                seen.add(one.text)
                yield one

    def _numbers(self, usable: Callable[[TokenDocument], bool]) -> list[list[int]]:
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


def _some_in_a_row(one: TokenDocument, room: int, generator: np.random.Generator) -> _ReadPassages:
    """The first passage, drawn at random, and as many more as there is room for."""
    sizes: NDArray[np.int64] = np.array([len(passage) for passage in one.passages])
    fitting = np.flatnonzero(np.cumsum(sizes[::-1])[::-1] >= min(room, int(sizes.sum())) // 2)
    first = int(generator.choice(fitting)) if len(fitting) else 0
    used = np.cumsum(sizes[first:])
    end = first + int(np.searchsorted(used, room - len(one.title))) + 1
    parts = (one.title, *one.passages[first:end])
    text = np.concatenate(parts)[:room]
    return _ReadPassages(one, first, text, passage_spans(parts, len(text)))
