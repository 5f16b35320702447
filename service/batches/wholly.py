"""Changes that are made to their end, though whoever asked for them may leave."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


async def wholly(change: Coroutine[Any, Any, Result]) -> Result:
    """The change has been made or has failed when this returns, however it ends."""
    changing = asyncio.create_task(change)
    try:
        return await asyncio.shield(changing)
    finally:
        await asyncio.wait({changing})
