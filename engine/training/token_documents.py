"""Documents of training as token ids, with the queries that should find them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from engine.text.tokenizer import TextTokenizer
from engine.training.data import Document
from engine.training.heading_passages import SHORTEST_PASSAGE, passages_of
from engine.types import Ids

CUT_TOKENS = 64
"""The length of the stretch that is cut out of a document without a query, and must find it."""


@dataclass(frozen=True)
class TokenDocument:
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


def token_documents(
    documents: Sequence[Document], tokenizer: TextTokenizer
) -> Iterator[TokenDocument]:
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
        yield TokenDocument(
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
