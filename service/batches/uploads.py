"""Uploads on their way to the disk. Threads of their own write them, so that a slow disk holds up
nothing but uploads."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import IO, TypeVar

from service.batches.database import storage_errors
from service.batches.records import StoredFile, new_id
from service.batches.room import Place, Room
from service.batches.store import BatchStore
from service.batches.uninterrupted import uninterrupted

_THREADS = 4

Result = TypeVar("Result")


class Uploads:
    def __init__(self, store: BatchStore, room: Room) -> None:
        self._store = store
        self._room = room
        self._threads = ThreadPoolExecutor(_THREADS, "lln-uploads")

    @asynccontextmanager
    async def begin(self, num_bytes: int) -> AsyncIterator[Upload]:
        """An upload with room for so many bytes at first. Nothing is left of it unless it is kept,
        however this ends."""
        async with self._room.place(num_bytes) as place:
            upload = Upload(self._store, place, self._threads)
            try:
                await upload.open()
                yield upload
            finally:
                await upload.close()


class Upload:
    """One file that arrives. All methods raise StorageFailure, and leave the event loop free."""

    def __init__(self, store: BatchStore, place: Place, threads: ThreadPoolExecutor) -> None:
        self.id = new_id("file")
        self._store = store
        self._place = place
        self._threads = threads
        self._contents: IO[bytes] | None = None

    async def open(self) -> None:
        await self._in_thread(self._open)

    async def reach(self, num_bytes: int) -> None:
        """Makes sure of room for so many bytes."""
        await self._place.reach(num_bytes)

    async def write(self, data: bytes | bytearray) -> None:
        """Adds to the end of the contents."""
        assert self._contents is not None, "it is open"
        await self._in_thread(self._contents.write, data)

    async def keep(self, file: StoredFile) -> None:
        await self._in_thread(self._sync)
        await self._place.keep(file)

    async def close(self) -> None:
        await self._in_thread(self._close)

    def _open(self) -> None:
        self._contents = self._store.open_upload(self.id)

    def _sync(self) -> None:
        assert self._contents is not None, "it is open"
        with self._contents:
            self._contents.flush()
            os.fsync(self._contents)

    def _close(self) -> None:
        with suppress(OSError):  # of a disk that is full, again
            if self._contents is not None:
                self._contents.close()
        with suppress(OSError):  # it is a leftover at the next start
            self._store.drop_upload(self.id)

    async def _in_thread(self, step: Callable[..., Result], *arguments: object) -> Result:
        """Returns when the step has ended, also for a caller that is cancelled: nothing is closed
        while a thread writes to it."""

        async def run() -> Result:
            loop = asyncio.get_running_loop()
            with storage_errors():
                return await loop.run_in_executor(self._threads, step, *arguments)

        return await uninterrupted(run())
