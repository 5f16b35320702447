"""Chunks of long documents, and what a reader of the chunk alone would have to be told about them.

A document is its title and its text. Sections lose their headings where there are several, so that
what a chunk is about often stands far above it. The context of a chunk is the document's title, or
its opening where it has none: no labels are needed, and any text will do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from engine.text.chunking import OPENING_TOKENS
from engine.text.tokenizer import TextTokenizer
from engine.training.data import Document
from engine.training.heading_passages import passages_of
from engine.training.pairs import draw_source
from engine.training.token_corpus import Batch, TokenRange, packed, too_little_text
from engine.types import Ids

CHUNK_TOKENS = (64, 128, 256)
"""The lengths of chunks. All chunks of a document have one of them."""

_SHORTEST_CHUNK = 24  # what is left at a document's end


@dataclass(frozen=True)
class ChunkBatch:
    """Documents, and their chunks both in place and as texts of their own."""

    documents: Batch
    spans: list[TokenRange]  # rows of the documents' states, each pooled to one vector
    owners: list[int]  # the document of each chunk, by its place in the batch
    alone: Batch
    contexts: Batch  # one for each document
    around: tuple[int, int]  # special tokens before and after a chunk alone


@dataclass(frozen=True)
class _TokenDocument:
    """Ids without special tokens."""

    text: Ids  # begins with the title
    context: Ids


class ChunkCorpus:
    """Documents of one or several sources, read from their beginning and divided into chunks."""

    def __init__(self, sources: Mapping[str, Sequence[Document]], tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._sources = [
            list(_token_documents(documents, tokenizer)) for documents in sources.values()
        ]

    def longest(self, length: int) -> int:
        """Tokens of the longest document in batches of this length."""
        texts = [len(one.text) for source in self._sources for one in source]
        return min(length, max(texts, default=0) + self._tokenizer.num_special)

    def check_documents(self, shortest: int) -> None:
        """Reject data without a document that is long enough."""
        if not any(self._long_enough(shortest)):
            raise too_little_text(
                f"no document has {shortest} tokens to be divided into chunks",
                shortest=shortest,
                longest=self.longest(shortest),
            )

    def batch(
        self, length: int, tokens: int, shortest: int, generator: np.random.Generator
    ) -> ChunkBatch:
        """Draw documents of one source, each read up to `length` tokens."""
        numbers = self._long_enough(shortest)
        source, chosen = draw_source(numbers, generator)
        room = length - self._tokenizer.num_special
        texts: list[Ids] = []
        contexts: list[Ids] = []
        alone: list[Ids] = []
        spans: list[TokenRange] = []
        owners: list[int] = []
        begin = self._tokenizer.num_prefix
        for number in chosen:
            one = self._sources[source][number]
            text = one.text[:room]
            if tokens < len(text):
                break
            tokens -= len(text)
            inside = _chunks(len(text), int(generator.choice(CHUNK_TOKENS)))
            spans += [(begin + start, begin + end) for start, end in inside]
            owners += [len(texts)] * len(inside)
            alone += [text[start:end] for start, end in inside]
            contexts.append(one.context)
            texts.append(text)
            begin += len(text) + self._tokenizer.num_special
        return ChunkBatch(
            documents=packed(texts, self._tokenizer),
            spans=spans,
            owners=owners,
            alone=packed(alone, self._tokenizer),
            contexts=packed(contexts, self._tokenizer),
            around=(self._tokenizer.num_prefix, self._tokenizer.num_suffix),
        )

    def _long_enough(self, shortest: int) -> list[list[int]]:
        least = max(shortest - self._tokenizer.num_special, _SHORTEST_CHUNK)
        return [
            [number for number, one in enumerate(source) if len(one.text) >= least]
            for source in self._sources
        ]


def _chunks(length: int, size: int) -> list[TokenRange]:
    spans = [(start, min(start + size, length)) for start in range(0, length, size)]
    return [span for span in spans if span[1] - span[0] >= _SHORTEST_CHUNK] or spans[:1]


def _token_documents(
    documents: Sequence[Document], tokenizer: TextTokenizer
) -> Iterator[_TokenDocument]:
    bodies = [
        "\n\n".join(passage.text for passage in passages_of(one)) or one.body for one in documents
    ]
    titles = tokenizer.encode_batch([one.title for one in documents])
    texts = tokenizer.encode_batch(bodies)
    for title, text in zip(titles, texts, strict=True):
        whole = np.concatenate([title.content, text.content])
        yield _TokenDocument(whole, title.content if len(title.content) else whole[:OPENING_TOKENS])
