"""The tokens of a text as text-embeddings-inference tells them, identically over HTTP and gRPC."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from engine.async_engine import AsyncEngine
from engine.execution.input_checks import check_text
from engine.execution.prompts import prompt_named
from engine.types import Tokenization


class SimpleToken(NamedTuple):
    """`start` and `stop` are characters of the prompt and the text together; special tokens have
    none."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


async def tokens_of(
    engine: AsyncEngine,
    text: str,
    *,
    model: str | None,
    prompt_name: str | None,
    keep_special: bool,
    timeout_s: float | None = None,
) -> tuple[int, Iterator[SimpleToken]]:
    """How many tokens the text has, special ones included, and the tokens asked for."""
    check_text(text, "text")
    info = engine.resolve(model)
    if prompt_name is not None:
        text = prompt_named(prompt_name, info.prompts, info.name) + text
    found = await engine.tokenize(text, model=model, timeout_s=timeout_s)
    tokens = _simple_tokens(found, text)
    chosen = tokens if keep_special else (token for token in tokens if not token.special)
    return len(found.ids), chosen


def _simple_tokens(found: Tokenization, text: str) -> Iterator[SimpleToken]:
    for token_id, token, start, stop in found.each():
        if start == stop:  # no characters of the text
            yield SimpleToken(token_id, token, True, None, None)
        else:
            yield SimpleToken(token_id, text[start:stop], False, start, stop)
