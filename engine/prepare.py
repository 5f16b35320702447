"""From a caller's inputs to rows of token ids: every check an input must pass is here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from engine.config import EngineConfig
from engine.errors import InvalidInput, TextTooLong, shown
from engine.jobs import PATIENCE_S
from engine.model.embedding_model import EmbeddingModel
from engine.text.chunks import ChunkSpan
from engine.text.tokenizer import Encoded, TextTokenizer
from engine.text.truncation import truncate
from engine.types import EmbedOptions, Span, TextInput


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """One text, ready for the device."""

    ids: NDArray[np.int32]  # [tokens embedded]
    spans: tuple[Span, ...]  # rows to pool: the whole text, its opening if asked for, its chunks
    chunks: tuple[ChunkSpan, ...]
    opening: float = 0.0  # how much of its vector is added to each chunk's
    alone: float = 0.0  # how much of each chunk's vector, and the opening's, is as read alone
    num_prompt: int = 0  # tokens of a prompt before the document's own
    num_tokens: int  # before truncation
    dropped: Span | None  # characters

    @classmethod
    def whole(cls, ids: NDArray[np.int32]) -> Self:
        """A text of these ids, special tokens included, of which one vector is wanted."""
        return cls(
            ids=ids, spans=(Span(0, len(ids)),), chunks=(), num_tokens=len(ids), dropped=None
        )

    @property
    def num_embedded(self) -> int:
        return len(self.ids)

    @property
    def was_truncated(self) -> bool:
        return self.num_embedded < self.num_tokens


def check_inputs(inputs: Sequence[TextInput], config: EngineConfig) -> None:
    """What can be told without a tokenizer."""
    if isinstance(inputs, str):
        raise InvalidInput("inputs must be a list of texts, got one string", code="invalid_type")
    if len(inputs) == 0:
        raise InvalidInput(
            "input holds no texts", code="empty_input", param="input", limit=1, actual=0
        )
    if len(inputs) > config.max_inputs:
        raise InvalidInput(
            f"input holds {len(inputs)} texts, the limit is {config.max_inputs}",
            code="too_many_inputs",
            param="input",
            limit=config.max_inputs,
            actual=len(inputs),
        )
    for index, item in enumerate(inputs):
        check_input(item, f"input[{index}]")


def check_input(item: object, param: str) -> None:
    if isinstance(item, str):
        check_text(item, param)
    elif isinstance(item, Sequence | np.ndarray):
        if len(item) == 0:
            raise InvalidInput(f"{param} holds no tokens", code="empty_text", param=param)
    else:
        kind = type(item).__name__
        raise InvalidInput(
            f"{param} must be a string or a list of token ids, got {kind}",
            code="invalid_type",
            param=param,
            actual=kind,
        )


def check_text(text: str, param: str) -> None:
    if not text:
        raise InvalidInput(f"{param} is an empty string", code="empty_text", param=param)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidInput(
                f"{param} has a lone surrogate at character {error.start}",
                code="invalid_unicode",
                param=param,
                actual=f"U+{ord(text[error.start]):04X}",
            ) from None


def check_options(options: EmbedOptions, model: EmbeddingModel) -> None:
    dim = model.info.dim
    if options.dimensions is not None and not 1 <= options.dimensions <= dim:
        raise InvalidInput(
            f"dimensions must be 1 to {dim} for {model.name}, got {shown(options.dimensions)}",
            code="invalid_dimensions",
            param="dimensions",
            limit=dim,
            actual=options.dimensions,
        )
    if options.truncate not in ("error", "start", "end"):
        raise InvalidInput(
            f"truncate must be error, start or end, got {options.truncate!r}",
            code="invalid_truncate",
            param="truncate",
            actual=str(options.truncate),
        )
    if options.priority not in PATIENCE_S:
        known = ", ".join(PATIENCE_S)
        raise InvalidInput(
            f"priority must be one of {known}, got {options.priority!r}",
            code="invalid_priority",
            param="priority",
            limit=known,
            actual=str(options.priority),
        )
    prompt_of(options, model)


def check_pools(model: EmbeddingModel) -> None:
    if model.checkpoint.pooling == "none":
        raise InvalidInput(
            f"{model.name} does not pool: it has token states, not one vector for a document",
            code="model_does_not_pool",
            param="model",
            actual=model.name,
        )


def check_token_states(num_tokens: int, config: EngineConfig) -> None:
    """Token states are as large as the text is long, so a call may ask for so many only."""
    limit = config.max_token_states
    if num_tokens > limit:
        raise TextTooLong(
            f"the call asks for the states of {num_tokens} tokens or more, the limit is {limit}",
            code="too_many_token_states",
            param="input",
            limit=limit,
            actual=num_tokens,
        )


def prompt_of(options: EmbedOptions, model: EmbeddingModel) -> str:
    """The prompt put before each text; empty where there is none."""
    prompts = model.checkpoint.prompts
    name = options.prompt_name
    if name is None:
        default = model.checkpoint.default_prompt_name
        return prompts[default] if default else ""
    if name not in prompts:
        known = ", ".join(prompts) or "none"
        raise InvalidInput(
            f"{model.name} has no prompt {shown(name)!r}; it has: {known}",
            code="unknown_prompt",
            param="prompt_name",
            limit=known,
            actual=name,
        )
    return prompts[name]


def prepare(
    inputs: Sequence[TextInput],
    model: EmbeddingModel,
    options: EmbedOptions,
    *,
    first_index: int = 0,
) -> list[Prepared]:
    """Checked inputs as token ids; `first_index` is where they stand in the caller's list."""
    params = [f"input[{first_index + index}]" for index in range(len(inputs))]
    prompt = prompt_of(options, model)
    encoded = _encode(inputs, model, prompt, params)
    return [
        _fit(item, model, options, param, len(prompt))
        for item, param in zip(encoded, params, strict=True)
    ]


def check_alone(document: Prepared, config: EngineConfig) -> None:
    """Chunks that overlap may have many times their document's tokens; pooled, that costs nothing,
    but each is read once more to be read alone."""
    limit = config.max_queue_tokens
    num_tokens = sum(span.end - span.start for span in document.spans[1:])
    if document.alone and num_tokens > limit:
        raise InvalidInput(
            f"the chunks to be read alone have {num_tokens} tokens together, the limit is {limit}; "
            "ask for fewer, or for less overlap",
            code="too_many_chunks",
            param="chunking.alone",
            limit=limit,
            actual=num_tokens,
        )


def passages_alone(document: Prepared, tokenizer: TextTokenizer) -> Iterator[Prepared]:
    """The document's opening, if it is asked for, and its chunks, each as a text of its own behind
    the document's prompt; none where nothing is to be read alone."""
    if not document.alone:
        return
    first = tokenizer.num_prefix + document.num_prompt
    last = document.num_embedded - tokenizer.num_suffix
    prompt = document.ids[tokenizer.num_prefix : first]
    for span in document.spans[1:]:
        content = document.ids[max(span.start, first) : min(span.end, last)]
        yield Prepared.whole(tokenizer.between_special(np.concatenate([prompt, content])))


def token_by_token(text: Prepared) -> Prepared:
    """The same text, to be answered with the state of each of its tokens."""
    spans = tuple(Span(token, token + 1) for token in range(text.num_embedded))
    return replace(text, spans=spans)


def _encode(
    inputs: Sequence[TextInput], model: EmbeddingModel, prompt: str, params: Sequence[str]
) -> list[Encoded]:
    texts = [prompt + item for item in inputs if isinstance(item, str)]
    of_texts = iter(model.tokenizer.encode_batch(texts) if texts else [])
    return [
        next(of_texts) if isinstance(item, str) else _encode_ids(item, model, param)
        for item, param in zip(inputs, params, strict=True)
    ]


def _encode_ids(ids: Sequence[int], model: EmbeddingModel, param: str) -> Encoded:
    return model.tokenizer.encode_ids(model.tokenizer.validate_ids(ids, param=param))


def _fit(
    encoded: Encoded, model: EmbeddingModel, options: EmbedOptions, param: str, prompt_length: int
) -> Prepared:
    max_tokens = model.info.max_tokens
    if prompt_length and encoded.has_characters and encoded.num_tokens > max_tokens:
        encoded = encoded.behind_prompt(prompt_length)
    kept, dropped = truncate(encoded, max_tokens=max_tokens, policy=options.truncate, param=param)
    return Prepared(
        ids=kept.ids,
        spans=(Span(0, kept.num_tokens),),
        chunks=(),
        num_tokens=encoded.num_tokens,
        dropped=_without_prompt(dropped, prompt_length) if dropped else None,
    )


def _without_prompt(characters: Span, prompt_length: int) -> Span:
    """Characters of the caller's own text; the prompt before it has none."""
    return Span(max(characters.start - prompt_length, 0), max(characters.end - prompt_length, 0))
