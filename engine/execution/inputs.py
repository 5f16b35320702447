"""From a caller's inputs to token ids, with every check that an input must pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self, get_args

import numpy as np
from numpy.typing import NDArray

from engine.config import EngineConfig
from engine.errors import InvalidInput, TextTooLong, shown
from engine.model.embedding_model import EmbeddingModel
from engine.steps import Steps, finish
from engine.text.chunking import ChunkSpan
from engine.text.tokenizer import SEND_TEXT, Encoded, TextTokenizer
from engine.text.truncation import too_long, truncate
from engine.text.unicode import check_unicode
from engine.types import EmbedOptions, Ids, Priority, Span, TextInput

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
        """The spans that are read alone too."""
        return self.spans[1:] if self.alone else ()

    @property
    def has_only_passages_alone(self) -> bool:
        """Whether its chunks take nothing from the document that they stand in."""
        return bool(self.chunks) and self.alone == 1

    def prompt_ids(self, tokenizer: TextTokenizer) -> Ids:
        return self.ids[tokenizer.num_prefix : tokenizer.num_prefix + self.num_prompt]

    @property
    def was_truncated(self) -> bool:
        return self.num_embedded < self.num_tokens


def check_inputs(inputs: Sequence[TextInput], config: EngineConfig) -> None:
    """Check what needs no tokenizer."""
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


def check_ids_to_decode(ids: object, config: EngineConfig) -> None:
    """Check what needs no tokenizer."""
    if isinstance(ids, str) or not isinstance(ids, Sequence | np.ndarray):
        kind = type(ids).__name__
        raise InvalidInput(
            f"ids must be a list of token ids, got {kind}",
            code="invalid_type",
            param="ids",
            actual=kind,
        )
    if not 1 <= len(ids) <= config.max_text_tokens:
        raise InvalidInput(
            f"ids must hold 1 to {config.max_text_tokens} token ids, got {len(ids)}",
            code="too_many_ids" if len(ids) else "empty_text",
            param="ids",
            limit=config.max_text_tokens,
            actual=len(ids),
        )


def check_ids_are_ours(inputs: Sequence[TextInput], alias: str, name: str) -> None:
    """A caller that asks for another model by an alias has the ids of that model's tokenizer."""
    for index, item in enumerate(inputs):
        if not isinstance(item, str):
            param = f"input[{index}]"
            raise InvalidInput(
                f"{param} is token ids, and {alias} is another name of {name} here, which has "
                f"another tokenizer: {SEND_TEXT}, or {name}'s ids under its own name",
                code="foreign_token_ids",
                param=param,
                actual=alias,
            )


def check_text(text: str, param: str) -> None:
    if not text:
        raise InvalidInput(f"{param} is an empty string", code="empty_text", param=param)
    check_unicode(text, param, param=param)


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
    limit = model.info.max_tokens
    if options.max_tokens is not None and not 1 <= options.max_tokens <= limit:
        raise InvalidInput(
            f"max_tokens must be 1 to {limit} for {model.name}, got {shown(options.max_tokens)}",
            code="invalid_max_tokens",
            param="max_tokens",
            limit=limit,
            actual=options.max_tokens,
        )
    if options.priority not in get_args(Priority):
        known = ", ".join(get_args(Priority))
        raise InvalidInput(
            f"priority must be one of {known}, got {options.priority!r}",
            code="invalid_priority",
            param="priority",
            limit=known,
            actual=str(options.priority),
        )
    prompt_of(options, model)


def max_tokens_of(options: EmbedOptions, model: EmbeddingModel) -> int:
    """The longest text that is read whole."""
    limit = model.info.max_tokens
    return limit if options.max_tokens is None else min(options.max_tokens, limit)


def check_pools(model: EmbeddingModel) -> None:
    if model.checkpoint.pooling == "none":
        raise InvalidInput(
            f"{model.name} does not pool: it has token states, not one vector for a document",
            code="model_does_not_pool",
            param="model",
            actual=model.name,
        )


def check_token_states(num_tokens: int, config: EngineConfig) -> None:
    """Token states grow with the length of the texts, so there is a limit for each call."""
    limit = config.max_token_states
    if num_tokens > limit:
        raise TextTooLong(
            f"the call asks for the states of {num_tokens} tokens or more, the limit is {limit}",
            code="too_many_token_states",
            param="input",
            limit=limit,
            actual=num_tokens,
        )


def check_room_for_states(model: EmbeddingModel, config: EngineConfig) -> None:
    """Raises InvalidInput if a model that does not pool could not answer even one token."""
    if model.checkpoint.pooling != "none":
        return
    least = len(prompt_ids_of(EmbedOptions(), model)) + model.tokenizer.num_special + 1
    limit = config.max_token_states
    if limit < least:
        raise InvalidInput(
            f"max_token_states must be at least {least}, got {limit}: {model.name} does not pool, "
            "and answers states of special tokens and of its prompt too",
            code="invalid_setting",
            param="max_token_states",
            limit=least,
            actual=limit,
        )


def canary_options(model: EmbeddingModel, config: EngineConfig) -> EmbedOptions:
    """How a text is embedded that no limit may refuse."""
    if model.checkpoint.pooling != "none":
        return EmbedOptions(truncate="end")
    most = min(config.max_token_states, model.info.max_tokens)
    return EmbedOptions(truncate="end", max_tokens=most)


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


def prompt_ids_of(options: EmbedOptions, model: EmbeddingModel) -> Ids:
    """The tokens of the prompt, without special ones."""
    prompt = prompt_of(options, model)
    if not prompt:
        return np.zeros(0, np.int32)
    (encoded,) = model.tokenizer.encode_batch([prompt])
    return encoded.content


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


def lengths_alone(document: PreparedText, tokenizer: TextTokenizer) -> Iterator[int]:
    """Tokens of each text that the document has read alone: see `texts_alone`."""
    if document.title is not None:
        yield len(document.title)
    around = tokenizer.num_prefix + tokenizer.num_suffix + document.num_prompt
    yield from (around + span.end - span.start for span in _spans_alone(document, tokenizer))


def texts_alone(document: PreparedText, tokenizer: TextTokenizer) -> Iterator[PreparedText]:
    """What the document has read besides, each as a text of its own after the document's prompt:
    its title, then its opening and its chunks. Nothing if the document asks for neither."""
    if document.title is not None:
        yield PreparedText.whole(document.title)
    prompt = document.prompt_ids(tokenizer)
    for span in _spans_alone(document, tokenizer):
        content = document.ids[span.start : span.end]
        yield PreparedText.whole(tokenizer.between_special(np.concatenate([prompt, content])))


def _spans_alone(document: PreparedText, tokenizer: TextTokenizer) -> Iterator[Span]:
    """The content of the passages that are read alone, without prompt and special tokens."""
    first, last = document.content_rows(tokenizer)
    for span in document.read_alone:
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
