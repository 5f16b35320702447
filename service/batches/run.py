"""Runs one batch to its end, from whatever state it is in.

An answer counts once its line is in the batch's files. A server that is killed loses only answers
that it had not written; their requests are answered again, once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from engine.errors import EngineUnavailable
from engine.scheduling.admission import MemoryBudget
from service.batches.answers import Answered, answer_line, expired_line, written_files
from service.batches.reading import BatchReader, Progress
from service.batches.records import Batch, BatchStatus, Counts, LineError, new_id
from service.batches.requests import Request
from service.batches.store import BatchStore
from service.batches.usage import Amount
from service.errors import StorageFull
from service.metrics import BatchApiMetrics
from service.patience import patiently

log = logging.getLogger(__name__)

AnswerRequest: TypeAlias = Callable[[str, dict[str, Any], str], Awaitable[Answered]]
"""Answers the body of a request to an endpoint, by its id. A failure of the request is an answer
too. Raises QueueFull or EngineUnavailable if it should be asked again later."""

_AT_ONCE = 16
"""Requests in flight: enough to fill the device's batches with short texts."""

_BYTES_AT_ONCE = 32 * 1024 * 1024
"""Bytes of the lines in flight together. A longer line is in flight alone."""

RETRY_S = 5.0
_DONE = 200


@dataclass(frozen=True, kw_only=True)
class BatchLimits:
    file_bytes: int
    stored: Amount
    """The most that uploads and answers may take."""
    stored_batches: int
    batch_requests: int
    open_batches: int
    line_bytes: int
    kept_s: float | None
    """How long what is finished is kept; None: until it is deleted."""


class BatchRun:
    """Runs one batch to its end, from whatever state it is in."""

    def __init__(
        self,
        batch: Batch,
        store: BatchStore,
        reader: BatchReader,
        answer: AnswerRequest,
        limits: BatchLimits,
        metrics: BatchApiMetrics,
    ) -> None:
        self.batch = batch
        self._store = store
        self._reader = reader
        self._answer = answer
        self._limits = limits
        self._metrics = metrics
        self._answered: set[str] = set()
        self._answering: asyncio.Task[None] | None = None
        self._recording: set[asyncio.Task[None]] = set()
        self._writing = asyncio.Lock()
        self._input = store.path(batch.input_file_id)
        self._output = store.path(batch.output_file_id)
        self._errors = store.path(batch.error_file_id)

    def cancel(self) -> None:
        """The answers so far are kept."""
        self.batch = self.batch.to("cancelling")
        if self._answering is not None:
            self._answering.cancel()

    async def finish(self) -> None:
        if not await asyncio.to_thread(self._input.exists):
            await self._resume()
            await self.fail(LineError(code="file_not_found", message="the input file is gone"))
            return
        if self.batch.status == "validating" and not await self._validate():
            return
        await self._resume()
        # A task of its own: a cancelled batch must not be mistaken for a server that stops.
        self._answering = asyncio.create_task(self._answer_all())
        if self.batch.status == "cancelling":
            self._answering.cancel()
        try:
            await asyncio.wait({self._answering}, timeout=self.batch.expires_at - time.time())
        except asyncio.CancelledError:  # the server stops, also while its disk is full
            await self._stop(self._answering, within_s=RETRY_S)
            raise
        await self._stop(self._answering)
        try:
            with suppress(asyncio.CancelledError):
                await self._answering
        except StorageFull as error:  # the batches behind it, and its caller, need not wait
            await self.fail(LineError(code=error.code, message=error.message))
            return
        await self._finalize()

    async def _stop(self, answering: asyncio.Task[None], within_s: float | None = None) -> None:
        """What is being written is written to its end: the next server reads it."""
        answering.cancel()
        await asyncio.wait({answering}, timeout=within_s)
        if self._recording:
            await asyncio.wait(self._recording, timeout=within_s)

    async def _validate(self) -> bool:
        """Whether the input can be answered; if not, the batch has failed."""
        checked = await asyncio.to_thread(
            self._reader.check,
            self._input,
            self.batch.endpoint,
            max_requests=self._limits.batch_requests,
            max_line_bytes=self._limits.line_bytes,
        )
        if self.batch.status == "cancelling":  # meanwhile
            return True
        counts = Counts(total=checked.total)
        if checked.errors:
            await self.fail(*checked.errors, counts=counts)
            return False
        self.batch = self.batch.to("in_progress", counts=counts, model=checked.model)
        await asyncio.to_thread(self._store.save, self.batch)
        return True

    async def _resume(self) -> None:
        progress = await asyncio.to_thread(self._read_progress)
        self._answered = progress.answered
        self.batch = replace(self.batch, counts=progress.counts)

    def _read_progress(self) -> Progress:
        """Cuts off answers that are not whole: those that come next must begin on a new line."""
        progress = self._reader.progress(self.batch, self._output, self._errors)
        for path, num_bytes in progress.num_bytes.items():
            self._store.cut(path, num_bytes)
        return progress

    async def fail(self, *errors: LineError, **changes: Any) -> None:
        """What was answered is kept."""
        await self._end("failed", errors=errors, **changes)

    async def _answer_all(self) -> None:
        slots, memory = asyncio.Semaphore(_AT_ONCE), MemoryBudget(_BYTES_AT_ONCE)
        requests = self._unanswered()
        try:
            async with asyncio.TaskGroup() as group:
                while (request := await asyncio.to_thread(next, requests, None)) is not None:
                    await slots.acquire()
                    held = AsyncExitStack()
                    await held.enter_async_context(memory.reserve(request.num_bytes))
                    task = group.create_task(self._answer_one(request, held))
                    task.add_done_callback(lambda _: slots.release())
        except ExceptionGroup as failures:
            # The first failure cancelled the others.
            raise failures.exceptions[0] from None

    def _unanswered(self) -> Iterator[Request]:
        for request in self._reader.requests(self._input, self.batch.endpoint):
            if request.custom_id not in self._answered:
                yield request

    async def _answer_one(self, request: Request, held: AsyncExitStack) -> None:
        """`held` is its memory."""
        async with held:
            found = await self._ask(request)
            line = answer_line(request.custom_id, found)
            size = Amount(sum(map(len, line)))
            self._store.usage.take(size, self._limits.stored)
            # Once begun, the line is written to its end, and counted.
            recording = asyncio.create_task(self._record(request.custom_id, found, line))
            self._recording.add(recording)
            recording.add_done_callback(self._recording.discard)
            recording.add_done_callback(lambda _: self._store.usage.give_back(size))
            await asyncio.shield(recording)

    async def _ask(self, request: Request) -> Answered:
        answer = partial(self._answer, self.batch.endpoint, request.body, new_id("req"))
        return await patiently(answer, EngineUnavailable)

    async def _record(self, custom_id: str, found: Answered, line: tuple[bytes, ...]) -> None:
        succeeded = found.status == _DONE
        path = self._output if succeeded else self._errors
        async with self._writing:  # a line that fails is cut off again, and no other
            await self._append(path, line)
        self._answered.add(custom_id)
        counts = self.batch.counts
        self.batch = replace(
            self.batch,
            counts=replace(
                counts,
                completed=counts.completed + succeeded,
                failed=counts.failed + (not succeeded),
                tokens=counts.tokens + (found.tokens if succeeded else 0),
            ),
        )
        self._metrics.request_answered("completed" if succeeded else "failed")

    async def _append(self, path: Path, line: tuple[bytes, ...]) -> None:
        """Writes a line, however long the disk is full. The other lines wait for it, so that a full
        disk is logged once and not for each of them."""
        while True:
            try:
                await asyncio.to_thread(self._store.append, path, *line)
                return
            except OSError:
                log.exception("an answer of a batch cannot be written; trying again")
                await asyncio.sleep(RETRY_S)

    async def _finalize(self) -> None:
        if self.batch.status == "cancelling":
            await self._end("cancelled")
            return
        is_answered = self.batch.counts.answered == self.batch.counts.total
        self.batch = self.batch.to("finalizing")
        await asyncio.to_thread(self._store.save, self.batch)
        if not is_answered:
            await asyncio.to_thread(self._write_expired)
            await self._resume()
        await self._end("completed" if is_answered else "expired")

    def _write_expired(self) -> None:
        for request in self._unanswered():
            self._store.append(self._errors, expired_line(request.custom_id))

    async def _end(self, status: BatchStatus, **changes: Any) -> None:
        paths = {"output": self._output, "error": self._errors}
        files = await asyncio.to_thread(written_files, self.batch, paths)
        known = {file.id for file in files}
        ended = self.batch.to(
            status,
            has_output=self.batch.output_file_id in known,
            has_errors=self.batch.error_file_id in known,
            **changes,
        )
        await asyncio.to_thread(self._store.finish, ended, files)
        self.batch = ended
