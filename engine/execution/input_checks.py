"""The checks that inputs and options must pass before they are tokenised."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from typing import get_args

import numpy as np

from engine.config import EngineConfig
from engine.errors import InvalidInput, TextTooLong, shown
from engine.execution.prompts import prompt_ids_of, prompt_of
from engine.model.embedding_model import EmbeddingModel
from engine.text.unicode import check_unicode
from engine.text.vocabulary import SEND_TEXT
from engine.types import EmbedOptions, ModelInfo, Priority, TextInput


def check_inputs(inputs: Sequence[TextInput], config: EngineConfig) -> None:
    """Check what needs no tokenizer."""
    _check_is_list(inputs)
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


def _check_is_list(inputs: object) -> None:
    """Columns of tables pass, which have a length and an order too."""
    if not isinstance(inputs, Collection) or isinstance(inputs, str | bytes | Mapping | Set):
        kind = "one string" if isinstance(inputs, str) else type(inputs).__name__
        raise InvalidInput(
            f"inputs must be a list of texts, got {kind}", code="invalid_type", actual=kind
        )


def check_input(item: object, param: str) -> None:
    if isinstance(item, str):
        check_text(item, param)
    elif isinstance(item, Sequence | np.ndarray) and not isinstance(item, bytes | bytearray):
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


def check_vector_or_chunks(vector: bool, chunks: object, chosen_by: str) -> None:
    """A document has its own vector, chunks or both. `chosen_by` is the field that gives chunks."""
    if not vector and chunks is None:
        raise InvalidInput(
            f"vector is false and there are no chunks, so nothing is asked for; set {chosen_by}, "
            "or leave vector out",
            code="nothing_asked_for",
            param="vector",
            actual=False,
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


def check_text(text: object, param: str) -> None:
    if not isinstance(text, str):
        kind = type(text).__name__
        raise InvalidInput(
            f"{param} must be a string, got {kind}", code="invalid_type", param=param, actual=kind
        )
    if not text:
        raise InvalidInput(f"{param} is an empty string", code="empty_text", param=param)
    check_unicode(text, param, param=param)


def check_dimensions(dimensions: int | None, info: ModelInfo) -> None:
    if dimensions is not None and not 1 <= dimensions <= info.dim:
        raise InvalidInput(
            f"dimensions must be 1 to {info.dim} for {info.name}, got {shown(dimensions)}",
            code="invalid_dimensions",
            param="dimensions",
            limit=info.dim,
            actual=dimensions,
        )


def check_options(options: EmbedOptions, model: EmbeddingModel) -> None:
    check_dimensions(options.dimensions, model.info)
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
