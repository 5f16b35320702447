"""Uploads on their way to the disk. Threads of their own write them, so that a slow disk holds up
nothing but uploads."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import IO, TypeVar

from service.batches.arriving import Arrival, Arriving
from service.batches.database import storage_errors
from service.batches.records import StoredFile, new_id
from service.batches.store import BatchStore
from service.batches.uninterrupted import uninterrupted
from service.batches.usage import NOTHING, Amount

_THREADS = 4

Result = TypeVar("Result")


class Uploads:
    def __init__(self, store: BatchStore, limit: Amount) -> None:
        """`limit` is of the number and of the bytes of all files and uploads together."""
        self._store = store
        self._limit = limit
        self._threads = ThreadPoolExecutor(_THREADS, "lln-uploads")
        self._arriving = Arriving()

    @asynccontextmanager
    async def begin(self, announced_bytes: int) -> AsyncIterator[Upload]:
        """An upload, refused if its bytes do not fit now, or if too many uploads arrive. It takes
        room only as it arrives: callers that announce much and send nothing would keep all others
        out. Nothing is left of it unless it is kept, however this ends."""
        self._store.usage.check(Amount(announced_bytes, 1), self._limit)
        async with self._arriving.place() as arrival:
            upload = Upload(self._store, self._limit, self._threads, arrival)
            try:
                await upload.open()
                yield upload
            finally:
                await upload.close()


class Upload:
    """One file that arrives. It takes the bytes that it needs before they are written, so that
    several at once stay within the limit together. All methods raise StorageFailure, and leave the
    event loop free."""

    def __init__(
        self, store: BatchStore, limit: Amount, threads: ThreadPoolExecutor, arrival: Arrival
    ) -> None:
        self.id = new_id("file")
        self._arrival = arrival
        self._store = store
        self._limit = limit
        self._threads = threads
        self._taken = NOTHING
        self._contents: IO[bytes] | None = None

    async def open(self) -> None:
        self._take(Amount(num_files=1))
        await self._in_thread(self._open)

    def reach(self, num_bytes: int) -> None:
        """Takes what is missing to this many bytes."""
        self._arrival.num_bytes = num_bytes
        missing = num_bytes - self._taken.num_bytes
        if missing > 0:
            self._take(Amount(missing))

    def _take(self, more: Amount) -> None:
        self._store.usage.take(more, self._limit)
        self._taken += more

    async def write(self, data: bytes | bytearray) -> None:
        """Adds to the end of the contents."""
        assert self._contents is not None, "it is open"
        await self._in_thread(self._contents.write, data)

    async def keep(self, file: StoredFile) -> None:
        """Makes it a file. However this ends, it then is a whole file or none."""
        self._arrival.ends()
        await self._in_thread(self._keep, file)

    async def close(self) -> None:
        await self._in_thread(self._close)

    def _open(self) -> None:
        self._contents = self._store.open_upload(self.id)

    def _keep(self, file: StoredFile) -> None:
        assert self._contents is not None, "it is open"
        with self._contents:
            self._contents.flush()
            os.fsync(self._contents)
        self._store.add_upload(file, taken=self._taken)
        self._taken = NOTHING

    def _close(self) -> None:
        try:
            with suppress(OSError):  # of a disk that is full, again
                if self._contents is not None:
                    self._contents.close()
            with suppress(OSError):  # it is a leftover at the next start
                self._store.drop_upload(self.id)
        finally:
            self._store.usage.give_back(self._taken)

    async def _in_thread(self, step: Callable[..., Result], *arguments: object) -> Result:
        """Returns when the step has ended, also for a caller that is cancelled: nothing is closed
        while a thread writes to it."""

        async def run() -> Result:
            loop = asyncio.get_running_loop()
            with storage_errors():
                return await loop.run_in_executor(self._threads, step, *arguments)

        return await uninterrupted(run())
