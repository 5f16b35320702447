"""From a caller's inputs to token ids."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Self

import numpy as np
from numpy.typing import NDArray

from engine.config import EngineConfig
from engine.execution.prompts import prompt_of
from engine.model.embedding_model import EmbeddingModel
from engine.steps import Steps, finish
from engine.text.chunking import ChunkSpan
from engine.text.encoded import Encoded
from engine.text.tokenizer import TextTokenizer
from engine.text.truncation import too_long, truncate
from engine.types import EmbedOptions, Ids, Span, TextInput

PIECE_TEXTS = 64
"""Texts tokenised together: few enough that the device starts while the next ones are read."""


@dataclass(frozen=True, kw_only=True)
class PreparedText:
    """One text, ready for the device."""

    ids: NDArray[np.int32]  # [tokens embedded]
    spans: tuple[Span, ...]  # rows to pool: the whole text, its opening if asked for, its chunks
    chunks: tuple[ChunkSpan, ...]
    opening: float = 0.0  # how much of its vector, or the title's, is added to each chunk's
    alone: float = 0.0  # how much of each chunk's vector, and the opening's, is as read alone
    title: NDArray[np.int32] | None = None  # read as a text of its own, in place of the opening
    linked: PreparedText | None = None  # its passages as read together, where each is not alone
    num_prompt: int = 0  # tokens of a prompt before the document's own
    num_tokens: int  # before truncation
    dropped: Span | None  # characters

    @classmethod
    def whole(cls, ids: NDArray[np.int32]) -> Self:
        """A text of these ids, special tokens included, pooled as a whole."""
        return cls(
            ids=ids, spans=(Span(0, len(ids)),), chunks=(), num_tokens=len(ids), dropped=None
        )

    @property
    def num_embedded(self) -> int:
        return len(self.ids)

    def content_rows(self, tokenizer: TextTokenizer) -> Span:
        """The rows of the text itself, without prompt and special tokens."""
        first = tokenizer.num_prefix + self.num_prompt
        return Span(first, self.num_embedded - tokenizer.num_suffix)

    @property
    def is_tiled(self) -> bool | None:
        """Whether it is read tile by tile; None if its length decides."""
        return None

    @property
    def read_alone(self) -> tuple[Span, ...]:
        """The spans that are read alone too, but for linked passages."""
        if not self.alone:
            return ()
        num_linked = 0 if self.linked is None else len(self.chunks)
        return self.spans[1 : len(self.spans) - num_linked]

    @property
    def has_only_passages_alone(self) -> bool:
        """Whether its chunks take nothing from a reading of the whole document."""
        return bool(self.chunks) and self.alone == 1

    def prompt_ids(self, tokenizer: TextTokenizer) -> Ids:
        return self.ids[tokenizer.num_prefix : tokenizer.num_prefix + self.num_prompt]

    @property
    def was_truncated(self) -> bool:
        return self.num_embedded < self.num_tokens


def max_tokens_of(options: EmbedOptions, model: EmbeddingModel) -> int:
    """The longest text that is read whole."""
    limit = model.info.max_tokens
    return limit if options.max_tokens is None else min(options.max_tokens, limit)


def canary_options(model: EmbeddingModel, config: EngineConfig) -> EmbedOptions:
    """How a text is embedded that no limit may refuse."""
    if model.checkpoint.pooling != "none":
        return EmbedOptions(truncate="end")
    most = min(config.max_token_states, model.info.max_tokens)
    return EmbedOptions(truncate="end", max_tokens=most)


def prepare(
    inputs: Sequence[TextInput],
    model: EmbeddingModel,
    options: EmbedOptions,
    *,
    first_index: int = 0,
) -> list[PreparedText]:
    """Tokenise checked inputs. `first_index` is the place of the first in the caller's list."""
    return finish(prepare_steps(inputs, model, options, first_index=first_index))


def prepare_steps(
    inputs: Sequence[TextInput],
    model: EmbeddingModel,
    options: EmbedOptions,
    *,
    first_index: int = 0,
) -> Steps[list[PreparedText]]:
    """The same in steps. A text that may not be truncated is read no further than its limit."""
    params = [f"input[{first_index + index}]" for index in range(len(inputs))]
    prompt = prompt_of(options, model)
    encoded = yield from _encode(inputs, model, options, prompt, params)
    return [
        _fit(item, model, options, param, len(prompt))
        for item, param in zip(encoded, params, strict=True)
    ]


def num_characters(inputs: Sequence[TextInput]) -> int:
    """What tokenising these inputs costs; a token id counts as a character."""
    return sum(len(item) for item in inputs)


def lengths_alone(document: PreparedText, tokenizer: TextTokenizer) -> list[int]:
    """Tokens of each text that the document has read alone: see `texts_alone`."""
    before = [] if document.title is None else [len(document.title)]
    after = [] if document.linked is None else [document.linked.num_embedded]
    around = tokenizer.num_special + document.num_prompt
    # As arrays: the event loop asks several times, and there may be tens of thousands.
    bounds = np.fromiter(chain.from_iterable(document.read_alone), np.int64).reshape(-1, 2)
    starts, ends = bounds.clip(*document.content_rows(tokenizer)).T
    return [*before, *(around + ends - starts).tolist(), *after]


def texts_alone(document: PreparedText, tokenizer: TextTokenizer) -> Iterator[PreparedText]:
    """What the document has read besides, each as a text of its own after the document's prompt:
    its title, then its opening and its chunks; linked chunks are one text. Nothing if the document
    asks for neither."""
    if document.title is not None:
        yield PreparedText.whole(document.title)
    prompt = document.prompt_ids(tokenizer)
    for span in _content_of(document.read_alone, document, tokenizer):
        content = document.ids[span.start : span.end]
        yield PreparedText.whole(tokenizer.between_special(np.concatenate([prompt, content])))
    if document.linked is not None:
        yield document.linked


def passages_alone(document: PreparedText, tokenizer: TextTokenizer) -> Iterator[Span]:
    """The content of its chunks, without prompt and special tokens."""
    yield from _content_of((chunk.tokens for chunk in document.chunks), document, tokenizer)


def _content_of(
    spans: Iterable[Span], document: PreparedText, tokenizer: TextTokenizer
) -> Iterator[Span]:
    first, last = document.content_rows(tokenizer)
    for span in spans:
        start = max(span.start, first)
        yield Span(start, max(start, min(span.end, last)))


def batches(
    texts: Iterable[PreparedText], *, max_tokens: int, max_texts: int
) -> Iterator[list[PreparedText]]:
    """Neighbours up to these limits. A text of more tokens is a batch of its own."""
    batch: list[PreparedText] = []
    num_tokens = 0
    for text in texts:
        is_full = num_tokens + text.num_embedded > max_tokens or len(batch) == max_texts
        if batch and is_full:
            yield batch
            batch, num_tokens = [], 0
        batch.append(text)
        num_tokens += text.num_embedded
    if batch:
        yield batch


def token_by_token(text: PreparedText) -> PreparedText:
    """The same text with a span for each of its tokens."""
    spans = tuple(Span(token, token + 1) for token in range(text.num_embedded))
    return replace(text, spans=spans)


def _encode(
    inputs: Sequence[TextInput],
    model: EmbeddingModel,
    options: EmbedOptions,
    prompt: str,
    params: Sequence[str],
) -> Steps[list[Encoded]]:
    max_tokens = max_tokens_of(options, model)
    params_of_texts = [
        param for item, param in zip(inputs, params, strict=True) if isinstance(item, str)
    ]

    def check(index: int, num_tokens: int) -> None:
        if options.truncate == "error" and num_tokens > max_tokens:
            raise too_long(num_tokens, max_tokens, params_of_texts[index], has_ended=False)

    texts = [prompt + item for item in inputs if isinstance(item, str)]
    of_texts = iter((yield from model.tokenizer.encode_steps(texts, check=check)))
    return [
        next(of_texts) if isinstance(item, str) else _encode_ids(item, model, options, param)
        for item, param in zip(inputs, params, strict=True)
    ]


def _encode_ids(
    ids: Sequence[int], model: EmbeddingModel, options: EmbedOptions, param: str
) -> Encoded:
    max_tokens = max_tokens_of(options, model)
    if options.truncate == "error" and len(ids) > max_tokens:
        raise too_long(len(ids), max_tokens, param)  # millions of them are not read first
    return model.tokenizer.encode_ids(model.tokenizer.validate_ids(ids, param=param))


def _fit(
    encoded: Encoded, model: EmbeddingModel, options: EmbedOptions, param: str, prompt_length: int
) -> PreparedText:
    fitting, num_tokens, dropped = truncate(
        encoded,
        model.tokenizer,
        max_tokens=max_tokens_of(options, model),
        policy=options.truncate,
        prompt_length=prompt_length,
        param=param,
    )
    return PreparedText(
        ids=fitting.ids,
        spans=(Span(0, fitting.num_tokens),),
        chunks=(),
        num_tokens=num_tokens,
        dropped=dropped,
    )
