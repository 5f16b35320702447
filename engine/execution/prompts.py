"""The prompt that a model puts before each text."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from engine.errors import InvalidInput, shown
from engine.model.embedding_model import EmbeddingModel
from engine.types import EmbedOptions, Ids


def prompt_of(options: EmbedOptions, model: EmbeddingModel) -> str:
    """The prompt put before each text; empty where there is none."""
    prompts = model.checkpoint.prompts
    name = options.prompt_name
    if name is None:
        default = model.checkpoint.default_prompt_name
        return prompts[default] if default else ""
    return prompt_named(name, prompts, model.name)


def prompt_named(name: str, prompts: Mapping[str, str], model: str) -> str:
    """One of the prompts of the model of this name. Raises InvalidInput if it is none of them."""
    if name not in prompts:
        known = ", ".join(prompts) or "none"
        raise InvalidInput(
            f"{model} has no prompt {shown(name)!r}; it has: {known}",
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
