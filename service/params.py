"""The engine calls what it embeds `input`, as OpenAI does; other requests call it otherwise."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from engine.errors import LLNError

_SEVERAL = re.compile(r"^input(?=$|\[)")
_LONE = re.compile(r"^input(\[0\])?$")


@contextmanager
def input_told_as(name: str, *, lone: bool) -> Iterator[None]:
    """Failures of the input, told to a caller whose request has it under `name`: a list, or a lone
    text that the engine was given a list of."""
    try:
        yield
    except LLNError as error:
        theirs = (_LONE if lone else _SEVERAL).sub(name, error.param or "", count=1)
        if not error.param or theirs == error.param:
            raise
        raise _of_param(error, theirs) from error


def _of_param(error: LLNError, param: str) -> LLNError:
    message, engines = error.message, error.param or ""
    return type(error)(
        param + message.removeprefix(engines) if message.startswith(engines) else message,
        code=error.code,
        param=param,
        limit=error.limit,
        actual=error.actual,
        retry_after_s=error.retry_after_s,
    )
