"""Long answers, made without holding up the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

Item = TypeVar("Item")

# Writing JSON and messages holds the interpreter's lock: a thread would not keep the loop free.
_TURN_S = 0.004


async def in_turns(items: Iterable[Item]) -> AsyncIterator[Item]:
    """The items one by one, giving way to others every few milliseconds."""
    turn_ends = time.perf_counter() + _TURN_S
    for item in items:
        yield item
        if time.perf_counter() > turn_ends:
            await asyncio.sleep(0)
            turn_ends = time.perf_counter() + _TURN_S
