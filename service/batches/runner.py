"""Batches, answered one after the other at the lowest priority, and resumed after a restart."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from typing import Self

from engine.errors import InvalidInput, LLNError, QueueFull, shown, unknown_name
from service.batches.reading import BatchReader
from service.batches.records import ENDPOINTS, INPUT, WINDOW_S, Batch, LineError, Page, new_id
from service.batches.run import RETRY_S, AnswerRequest, BatchLimits, BatchRun
from service.batches.store import BatchStore
from service.batches.uninterrupted import uninterrupted
from service.batches.uploads import Uploads
from service.batches.usage import Amount
from service.errors import StorageFailure, report_params
from service.metrics import BatchApiMetrics

log = logging.getLogger(__name__)

_SWEEP_EVERY_S = 60.0
_LEAST_ANSWERS = Amount(num_bytes=1, num_files=1)
_FAILED = "the server failed to process this batch; the reason is in its log"


class Batches:
    """The files and batches of one server. Batches run while it is open as an asynchronous context
    manager; files may come and go until `aclose`."""

    def __init__(
        self,
        store: BatchStore,
        answer: AnswerRequest,
        limits: BatchLimits,
        metrics: BatchApiMetrics,
    ) -> None:
        self.store = store
        self.limits = limits
        self.uploads = Uploads(store, limits.stored)
        self._answer = answer
        self._reader = BatchReader()
        self._metrics = metrics
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._running: BatchRun | None = None
        self._changes = asyncio.Lock()  # of the statuses of batches

    async def __aenter__(self) -> Self:
        await self._measure()
        self._tasks = [asyncio.create_task(self._work()), asyncio.create_task(self._sweep())]
        return self

    async def __aexit__(self, *_: object) -> None:
        """What is unfinished is resumed by the next server."""
        for task in self._tasks:
            task.cancel()
        self._reader.close()
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task

    async def aclose(self) -> None:
        """Call this when no request is left: a server that stops takes what is arriving."""
        await asyncio.to_thread(self.store.close)

    async def create(
        self,
        input_file_id: str,
        endpoint: str,
        *,
        metadata: dict[str, str] | None,
        output_expires_s: int | None,
    ) -> Batch:
        if endpoint not in ENDPOINTS:
            raise unknown_name("endpoint", endpoint, ENDPOINTS, param="endpoint")
        async with self._changes:
            with report_params(lambda _: "input_file_id"):
                file = await asyncio.to_thread(self.store.get_file, input_file_id)
            if file.purpose != INPUT:
                raise InvalidInput(
                    f"file {input_file_id} has purpose {shown(file.purpose)}; the input of a batch "
                    f"has {INPUT}",
                    code="invalid_purpose",
                    param="input_file_id",
                    limit=INPUT,
                    actual=file.purpose,
                )
            await self._check_number()
            self.store.usage.check(_LEAST_ANSWERS, self.limits.stored)
            await asyncio.to_thread(self.store.make_room, self.limits.stored_batches)
            now = int(time.time())
            batch = Batch(
                id=new_id("batch"),
                endpoint=endpoint,
                input_file_id=input_file_id,
                output_file_id=new_id("file"),
                error_file_id=new_id("file"),
                created_at=now,
                expires_at=now + WINDOW_S,
                metadata=metadata,
                output_expires_s=output_expires_s,
            )
            await uninterrupted(self._start(batch))
        return batch

    async def _start(self, batch: Batch) -> None:
        await asyncio.to_thread(self.store.save, batch)
        self._wake.set()
        await self._measure()

    async def _check_number(self) -> None:
        waiting = len(await asyncio.to_thread(self.store.unfinished))
        if waiting >= self.limits.open_batches:
            raise QueueFull(
                f"{waiting} batches have not finished, which is the limit",
                code="too_many_batches",
                limit=self.limits.open_batches,
                actual=waiting,
                retry_after_s=60,
            )

    async def get(self, batch_id: str) -> Batch:
        """With the counts of this moment."""
        running = self._running
        if running is not None and running.batch.id == batch_id:
            return running.batch
        return await asyncio.to_thread(self.store.get_batch, batch_id)

    async def list(self, *, after: str | None, limit: int) -> Page[Batch]:
        """The newest first."""
        found = await asyncio.to_thread(self.store.list_batches, after=after, limit=limit)
        running = self._running
        batches = [
            running.batch if running is not None and running.batch.id == batch.id else batch
            for batch in found.items
        ]
        return Page(batches, found.has_more)

    async def delete_file(self, file_id: str) -> None:
        """Raises InvalidInput for the input of a batch that has not finished."""
        async with self._changes:  # no batch begins with a file that is being deleted
            await uninterrupted(asyncio.to_thread(self.store.delete_file, file_id))

    async def cancel(self, batch_id: str) -> Batch:
        """What was answered by now stays available. Raises InvalidInput for a finished batch."""
        async with self._changes:
            batch = await self.get(batch_id)
            if batch.is_finished:
                raise InvalidInput(
                    f"batch {batch_id} is {batch.status} and cannot be cancelled",
                    code="batch_finished",
                    param="batch_id",
                    actual=batch.status,
                )
            if batch.status == "cancelling":
                return batch
            return await uninterrupted(self._cancel(batch.to("cancelling")))

    async def _cancel(self, batch: Batch) -> Batch:
        running = self._running
        if running is not None and running.batch.id == batch.id:
            await asyncio.to_thread(self.store.save, batch)
            running.cancel()
        elif "in_progress" in batch.reached:  # it has answers, and is resumed
            await asyncio.to_thread(self.store.save, batch)
        else:  # it has not begun: others may keep it waiting for hours
            batch = batch.to("cancelled")
            await asyncio.to_thread(self.store.finish, batch, [])
            await self._measure()
        return batch

    async def _work(self) -> None:
        while True:
            self._wake.clear()
            try:
                while (run := await self._next()) is not None:
                    await self._run(run)
                    await self._measure()
            except (LLNError, OSError):  # the disk: what is stored stays, and is tried again
                log.exception("batches are halted for a moment")
                await asyncio.sleep(RETRY_S)
                continue
            await self._wake.wait()

    async def _next(self) -> BatchRun | None:
        """The run of the oldest batch that has not finished, from now on the one that runs."""
        async with self._changes:  # who cancels it is seen by the store or by the run
            waiting = await asyncio.to_thread(self.store.unfinished)
            if waiting:
                self._running = BatchRun(
                    waiting[0], self.store, self._reader, self._answer, self.limits, self._metrics
                )
                return self._running
        return None

    async def _run(self, run: BatchRun) -> None:
        try:
            await run.finish()
        except (LLNError, OSError):
            raise
        except Exception:  # a batch that cannot be answered must not hold up the others
            log.exception("a batch failed")
            await run.fail(LineError(code="internal_error", message=_FAILED))
        finally:
            self._running = None
            await asyncio.to_thread(self._reader.rest)

    async def _sweep(self) -> None:
        """Deletes what is old, and counts what is left, also while a batch takes its hours."""
        while True:
            try:
                while await self._delete_some():
                    pass
                await asyncio.to_thread(self.store.recount)
                await self._measure()
            except (LLNError, OSError):  # what is old is deleted by the next sweep
                log.exception("files and batches that are old cannot be deleted now")
            await asyncio.sleep(_SWEEP_EVERY_S)

    async def _delete_some(self) -> bool:
        """Whether there was anything old."""
        async with self._changes:  # no batch begins with a file that is being deleted
            deleted = await asyncio.to_thread(self.store.sweep, self.limits.kept_s)
        if deleted.batches or deleted.files:
            log.info(
                "deleted %d batches and %d files that are old",
                len(deleted.batches),
                len(deleted.files),
            )
        return bool(deleted.batches or deleted.files)

    async def _measure(self) -> None:
        # The log has the failure. Whoever made a change must not take it for one that failed.
        with suppress(StorageFailure):
            open_batches = len(await asyncio.to_thread(self.store.unfinished))
            stored = self.store.usage.kept
            self._metrics.changed(num_open=open_batches, stored_bytes=stored.num_bytes)
