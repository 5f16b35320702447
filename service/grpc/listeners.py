"""Streams that listen to a client, and would go on for ever when the server wants to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class Listeners:
    """The tasks that listen now. They can be interrupted all at once, and for good."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._interrupted = False

    async def run(self, listening: Coroutine[Any, Any, None]) -> bool:
        """Lets a listener end by itself and returns True; False if it was interrupted."""
        if self._interrupted:
            listening.close()
            return False
        task = asyncio.create_task(listening)
        self._tasks.add(task)
        try:
            await asyncio.wait({task})
        finally:
            self._tasks.discard(task)
            task.cancel()  # does nothing unless it is us who are cancelled
        if task.cancelled():
            return False
        task.result()
        return True

    def interrupt(self) -> None:
        self._interrupted = True
        for task in self._tasks:
            task.cancel()
