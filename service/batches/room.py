"""Room for uploads: each takes the bytes it needs before it writes them, so that several at once
stay within the limit together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from service.batches.records import StoredFile
from service.batches.store import BatchStore
from service.batches.uninterrupted import uninterrupted
from service.errors import StorageFailure


class Room:
    def __init__(self, store: BatchStore, limit_bytes: int) -> None:
        self._store = store
        self._limit_bytes = limit_bytes
        self._taken_bytes = 0  # by uploads that are not files yet
        self._changes = asyncio.Lock()  # of what is taken and of what is kept

    @asynccontextmanager
    async def place(self, num_bytes: int) -> AsyncIterator[Place]:
        """A place for so many bytes at first, until it is left. Raises StorageFailure if there is
        no room for it."""
        place = Place(self)
        await place.reach(num_bytes)
        try:
            yield place
        finally:
            self._taken_bytes -= place.num_bytes

    async def take(self, num_bytes: int) -> None:
        async with self._changes:
            kept = await asyncio.to_thread(lambda: self._store.kept_bytes)
            wanted = kept + self._taken_bytes + num_bytes
            if wanted > self._limit_bytes:
                raise StorageFailure(
                    f"files hold {kept} bytes and others that arrive {self._taken_bytes}, the "
                    f"limit is {self._limit_bytes}; delete some",
                    code="storage_full",
                    limit=self._limit_bytes,
                    actual=wanted,
                )
            self._taken_bytes += num_bytes

    async def keep(self, file: StoredFile) -> None:
        """Makes an upload a file. It is one or is none when this returns, however it ends."""
        async with self._changes:
            await uninterrupted(asyncio.to_thread(self._store.add_upload, file))


class Place:
    """The bytes that one upload has taken."""

    def __init__(self, room: Room) -> None:
        self.num_bytes = 0
        self._room = room

    async def reach(self, num_bytes: int) -> None:
        """Takes what is missing to so many bytes, or raises StorageFailure."""
        missing = num_bytes - self.num_bytes
        if missing > 0:
            await self._room.take(missing)
            self.num_bytes += missing

    async def keep(self, file: StoredFile) -> None:
        await self._room.keep(file)
