"""Waiting for room in the queue: a stream can simply be read more slowly, instead of refused."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from engine.errors import QueueFull

Result = TypeVar("Result")

_RETRY_S = 0.25


async def when_there_is_room(
    attempt: Callable[[float], Awaitable[Result]], timeout_s: float
) -> Result:
    """Calls `attempt` with the seconds left until it is let in. The last refusal is raised."""
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + timeout_s
    while True:
        try:
            return await attempt(give_up_at - loop.time())
        except QueueFull as full:
            wait_s = min(full.retry_after_s or _RETRY_S, _RETRY_S)
            if loop.time() + wait_s >= give_up_at:
                raise
        await asyncio.sleep(wait_s)
