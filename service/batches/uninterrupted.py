"""Changes that are completed even if their caller is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

Result = TypeVar("Result")


async def uninterrupted(change: Coroutine[Any, Any, Result]) -> Result:
    """When this returns or raises, the change has been made or has failed, however often the
    caller is cancelled."""
    changing = asyncio.create_task(change)
    try:
        return await asyncio.shield(changing)
    finally:
        while not changing.done():
            with suppress(asyncio.CancelledError):  # one is on its way to the caller already
                await asyncio.wait({changing})
