"""Work that comes back when the engine has no room for it, where nobody else would."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from engine.errors import LLNError, QueueFull

Answer = TypeVar("Answer")

_RETRY_S = 1.0


async def patiently(work: Callable[[], Awaitable[Answer]], *errors: type[LLNError]) -> Answer:
    """What the work answers. It begins again after a full queue, and after one of `errors`."""
    while True:
        try:
            return await work()
        except LLNError as error:
            if not isinstance(error, (QueueFull, *errors)):
                raise
            await asyncio.sleep(error.retry_after_s or _RETRY_S)
