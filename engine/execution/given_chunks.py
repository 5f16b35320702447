"""Reads documents that the caller has cut into chunks.

Each chunk is tokenised alone, so that its tokens are exactly its own, and the model reads them all
in one pass. Characters count from the start of the document, which is its chunks put together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from engine.config import EngineConfig
from engine.errors import InvalidInput, TextTooLong
from engine.execution.input_checks import check_text
from engine.execution.inputs import PreparedText, max_tokens_of
from engine.execution.linked_text import with_links
from engine.execution.prompts import prompt_ids_of
from engine.model.embedding_model import EmbeddingModel
from engine.steps import Steps
from engine.text.chunking import MAX_CHUNKS, SHARES, ChunkSpan, Shares
from engine.text.openings import Opening, opening_of
from engine.text.titles import HEAD_CHARACTERS, title_span
from engine.types import Context, EmbedOptions, Ids, Span


def check_documents(documents: Sequence[Sequence[str]], config: EngineConfig) -> None:
    """Check what needs no tokenizer."""
    check_document_count(len(documents), config)
    for index, chunks in enumerate(documents):
        param = f"documents[{index}]"
        if not chunks:
            raise InvalidInput(f"{param} has no chunks", code="empty_input", param=param)
        if len(chunks) > MAX_CHUNKS:
            raise InvalidInput(
                f"{param} has {len(chunks)} chunks, the limit is {MAX_CHUNKS}",
                code="too_many_chunks",
                param=param,
                limit=MAX_CHUNKS,
                actual=len(chunks),
            )
        for place, chunk in enumerate(chunks):
            check_text(chunk, f"{param}[{place}]")


def check_document_count(count: int, config: EngineConfig) -> None:
    if not 1 <= count <= config.max_inputs:
        raise InvalidInput(
            f"documents has {count} documents; 1 to {config.max_inputs} are accepted",
            code="too_many_inputs" if count else "empty_input",
            param="documents",
            limit=config.max_inputs if count else 1,
            actual=count,
        )


def prepare_given_steps(
    documents: Sequence[Sequence[str]],
    model: EmbeddingModel,
    options: EmbedOptions,
    context: Context,
) -> Steps[list[PreparedText]]:
    """Tokenise checked documents. One beyond the model's limit is read no further than that."""
    prompt = prompt_ids_of(options, model)
    prepared: list[PreparedText] = []
    for index, chunks in enumerate(documents):
        budget = _Budget(model, options, len(prompt), f"documents[{index}]")
        contents: list[Ids] = []
        for batch in _batches(chunks):
            first = len(contents)
            encoded = yield from model.tokenizer.encode_steps(batch, check=budget.check)
            for place, (chunk, item) in enumerate(zip(batch, encoded, strict=True), first):
                _check_has_tokens(chunk, item.content, f"documents[{index}][{place}]")
                budget.take(len(item.content))
                contents.append(item.content)
        prepared.append(_joined(chunks, contents, prompt, model, context))
    return prepared


class _Budget:
    """Counts the tokens of one document, and raises when they are too many."""

    def __init__(
        self, model: EmbeddingModel, options: EmbedOptions, num_prompt: int, param: str
    ) -> None:
        self._limit = max_tokens_of(options, model)
        self._num_special = model.tokenizer.num_special
        self._num_tokens = self._num_special + num_prompt
        self._param = param

    def take(self, num_content: int) -> None:
        self._num_tokens += num_content
        self._check(self._num_tokens)

    def check(self, _: int, num_tokens: int) -> None:
        """A long chunk is being read: it has this many tokens so far, special ones included."""
        self._check(self._num_tokens + num_tokens - self._num_special)

    def _check(self, num_tokens: int) -> None:
        if num_tokens > self._limit:
            raise TextTooLong(
                f"{self._param} has more than {self._limit} tokens, which is the limit; divide it "
                "into several documents",
                param=self._param,
                limit=self._limit,
                actual=num_tokens,
            )


_BATCH_CHUNKS = 4_096
"""Chunks tokenised before their tokens are counted: a document far beyond the limit is refused
without reading all of it."""


def _batches(chunks: Sequence[str]) -> list[Sequence[str]]:
    return [chunks[at : at + _BATCH_CHUNKS] for at in range(0, len(chunks), _BATCH_CHUNKS)]


def _check_has_tokens(chunk: str, content: Ids, param: str) -> None:
    if len(content):
        return
    what = "is only white space" if not chunk.strip() else "has no token of this model's tokenizer"
    raise InvalidInput(
        f"{param} {what}, so it has no vector; leave it out", code="empty_text", param=param
    )


class _Bounds(NamedTuple):
    """Where each chunk begins, and the end of the last."""

    tokens: list[int]
    characters: list[int]


def _joined(
    chunks: Sequence[str],
    contents: Sequence[Ids],
    prompt: Ids,
    model: EmbeddingModel,
    context: Context,
) -> PreparedText:
    tokenizer = model.tokenizer
    ids = tokenizer.between_special(np.concatenate([prompt, *contents]))
    first = tokenizer.num_prefix + len(prompt)
    bounds = _Bounds(
        [first, *(first + np.cumsum([len(content) for content in contents])).tolist()],
        [0, *np.cumsum([len(chunk) for chunk in chunks]).tolist()],
    )
    spans = tuple(
        ChunkSpan(
            tokens=Span(bounds.tokens[place], bounds.tokens[place + 1]),
            characters=Span(bounds.characters[place], bounds.characters[place + 1]),
        )
        for place in range(len(chunks))
    )
    shares = SHARES[context]
    opening = (
        _opening(chunks, model, shares, num_prompt=len(prompt), num_tokens=len(ids))
        if shares.opening
        else None
    )
    document = PreparedText(
        ids=ids,
        spans=(
            Span(0, len(ids)),
            *([opening.tokens] if opening else ()),
            *(span.tokens for span in spans),
        ),
        chunks=spans,
        opening=opening.share if opening else 0.0,
        alone=shares.alone,
        num_prompt=len(prompt),
        num_tokens=len(ids),
        dropped=None,
    )
    return with_links(document, model) if shares.linked else document


def _opening(
    chunks: Sequence[str],
    model: EmbeddingModel,
    shares: Shares,
    *,
    num_prompt: int,
    num_tokens: int,
) -> Opening:
    """The title is looked for in the first chunk, which may hold nothing else."""
    tokenizer = model.tokenizer
    beginning = chunks[0][:HEAD_CHARACTERS]
    title = title_span("".join(chunk[:HEAD_CHARACTERS] for chunk in chunks[:HEAD_CHARACTERS]))
    if title is not None and title.end > len(beginning):
        title = None
    (encoded,) = tokenizer.encode_batch([beginning], with_offsets=True)
    return opening_of(
        encoded.offsets[encoded.num_prefix : encoded.num_prefix + encoded.num_content],
        title,
        shares,
        first=tokenizer.num_prefix + num_prompt,
        num_prompt=num_prompt,
        num_tokens=num_tokens,
    )
