"""The Batch API of one server, which has its folder for itself."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

from engine.errors import LLNError
from service.batches.runner import Batches
from service.batches.store import BatchStore
from service.batches.uninterrupted import uninterrupted
from service.errors import NotAvailable

log = logging.getLogger(__name__)

_RETRY_S = 5.0


class BatchFolder:
    """Opens the folder once it can: while another server has it, or its disk fails, everything
    else works. Batches run while this is open as an asynchronous context manager; files may come
    and go until `aclose`."""

    def __init__(self, folder: Path | None, batches_in: Callable[[BatchStore], Batches]) -> None:
        self._folder = folder
        self._batches_in = batches_in
        self._batches: Batches | None = None
        self._why_not: LLNError = NotAvailable(
            "LLN_BATCH_FOLDER is empty: this server has no Batch API"
        )
        self._opening: asyncio.Task[None] | None = None

    @property
    def is_open(self) -> bool:
        return self._batches is not None

    @property
    def batches(self) -> Batches:
        """Raises the reason why there are none."""
        if self._batches is None:
            raise self._why_not.for_caller()
        return self._batches

    async def __aenter__(self) -> Self:
        if self._folder is not None and not await self._open(self._folder):
            self._opening = asyncio.create_task(self._open_later(self._folder))
        return self

    async def __aexit__(self, *exception: object) -> None:
        """What is unfinished is resumed by the next server."""
        if self._opening is not None:
            self._opening.cancel()
            with suppress(asyncio.CancelledError):
                await self._opening
        if self._batches is not None:
            await self._batches.__aexit__(*exception)

    async def aclose(self) -> None:
        """Call this when no request is left: a server that stops takes what is arriving."""
        if self._batches is not None:
            await self._batches.aclose()

    async def _open_later(self, folder: Path) -> None:
        while not self.is_open:
            await asyncio.sleep(_RETRY_S)
            if await uninterrupted(self._open(folder)):
                log.info("the Batch API is open in %s", folder)

    async def _open(self, folder: Path) -> bool:
        try:
            store = await asyncio.to_thread(BatchStore, folder)
        except LLNError as error:
            if str(error) != str(self._why_not):
                log.warning("no Batch API in %s for now: %s", folder, error)
            self._why_not = error
            return False
        batches = self._batches_in(store)
        await batches.__aenter__()
        self._batches = batches
        return True
