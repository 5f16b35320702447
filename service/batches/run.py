"""Runs one batch to its end, from whatever state it is in.

An answer counts once its line is in the batch's files. A server that is killed loses only answers
that it had not written; their requests are answered again, once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from engine.errors import EngineUnavailable
from engine.platform.files import sync
from engine.scheduling.admission import MemoryBudget
from service.batches.records import (
    OUTPUT,
    Batch,
    BatchStatus,
    Counts,
    LineError,
    StoredFile,
    new_id,
)
from service.batches.requests import (
    Answered,
    Request,
    answer_line,
    check_input,
    expired_line,
    read_requests,
    resume,
)
from service.batches.store import BatchStore
from service.metrics import BatchApiMetrics
from service.patience import patiently

log = logging.getLogger(__name__)

AnswerRequest: TypeAlias = Callable[[str, dict[str, Any], str], Awaitable[Answered]]
"""Answers the body of a request to an endpoint, by its id. A failure of the request is an answer
too. Raises QueueFull or EngineUnavailable if it should be asked again later."""

_AT_ONCE = 16
"""Requests in flight: enough to fill the device's batches with short texts."""

_BYTES_AT_ONCE = 32 * 1024 * 1024
"""Of their lines together. A longer line is in flight alone."""

RETRY_S = 5.0
_DONE = 200


@dataclass(frozen=True, kw_only=True)
class BatchLimits:
    file_bytes: int
    stored_bytes: int
    batch_requests: int
    open_batches: int
    line_bytes: int


class BatchRun:
    """Runs one batch to its end, from whatever state it is in."""

    def __init__(
        self,
        batch: Batch,
        store: BatchStore,
        answer: AnswerRequest,
        limits: BatchLimits,
        metrics: BatchApiMetrics,
    ) -> None:
        self.batch = batch
        self._store = store
        self._answer = answer
        self._limits = limits
        self._metrics = metrics
        self._answering: asyncio.Task[None] | None = None
        self._recording: set[asyncio.Task[None]] = set()
        self._writing = asyncio.Lock()
        self._input = store.path(batch.input_file_id)
        self._output = store.path(batch.output_file_id)
        self._errors = store.path(batch.error_file_id)

    def cancel(self, batch: Batch) -> None:
        """The answers so far are kept."""
        self.batch = replace(batch, counts=self.batch.counts)
        if self._answering is not None:
            self._answering.cancel()

    async def finish(self) -> None:
        if not await asyncio.to_thread(self._input.exists):
            await self.fail(LineError(code="file_not_found", message="the input file is gone"))
            return
        if self.batch.status == "validating" and not await self._validate():
            return
        progress = await asyncio.to_thread(resume, self.batch, self._output, self._errors)
        self.batch = replace(self.batch, counts=progress.counts)
        # A task of its own: a cancelled batch must not be mistaken for a server that stops.
        self._answering = asyncio.create_task(self._answer_all(progress.answered))
        if self.batch.status == "cancelling":
            self._answering.cancel()
        try:
            await asyncio.wait({self._answering}, timeout=self.batch.expires_at - time.time())
        finally:
            self._answering.cancel()
        with suppress(asyncio.CancelledError):
            await self._answering
        if self._recording:
            await asyncio.wait(self._recording)
        await self._finalize()

    async def _validate(self) -> bool:
        """Whether the input can be answered; if not, the batch has failed."""
        checked = await asyncio.to_thread(
            check_input,
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

    async def fail(self, *errors: LineError, **changes: Any) -> None:
        self.batch = self.batch.to("failed", errors=errors, **changes)
        await asyncio.to_thread(self._store.save, self.batch)

    async def _answer_all(self, answered: set[str]) -> None:
        slots, memory = asyncio.Semaphore(_AT_ONCE), MemoryBudget(_BYTES_AT_ONCE)
        requests = self._unanswered(answered)
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

    def _unanswered(self, answered: set[str]) -> Iterator[Request]:
        for request in read_requests(self._input, self.batch.endpoint):
            if request.custom_id not in answered:
                yield request

    async def _answer_one(self, request: Request, held: AsyncExitStack) -> None:
        """`held` is its memory."""
        async with held:
            found = await self._ask(request)
            succeeded = found.status == _DONE
            line = answer_line(request, found)
            path = self._output if succeeded else self._errors
            # Once begun, the line is written to its end, and counted.
            recording = asyncio.create_task(self._record(path, line, succeeded, found.tokens))
            self._recording.add(recording)
            recording.add_done_callback(self._recording.discard)
            await asyncio.shield(recording)

    async def _ask(self, request: Request) -> Answered:
        answer = partial(self._answer, self.batch.endpoint, request.body, new_id("req"))
        return await patiently(answer, EngineUnavailable)

    async def _record(self, path: Path, line: bytes, succeeded: bool, tokens: int) -> None:
        while True:
            try:
                async with self._writing:  # a line that fails is cut off again, and no other
                    await asyncio.to_thread(_append, path, line)
                break
            except OSError:
                log.exception("an answer of a batch cannot be written; trying again")
                await asyncio.sleep(RETRY_S)
        counts = self.batch.counts
        self.batch = replace(
            self.batch,
            counts=replace(
                counts,
                completed=counts.completed + succeeded,
                failed=counts.failed + (not succeeded),
                tokens=counts.tokens + (tokens if succeeded else 0),
            ),
        )
        self._metrics.request_answered("completed" if succeeded else "failed")

    async def _finalize(self) -> None:
        if self.batch.status == "cancelling":
            end: BatchStatus = "cancelled"
        elif self.batch.counts.answered < self.batch.counts.total:
            end = "expired"
        else:
            end = "completed"
        if end != "cancelled":
            self.batch = self.batch.to("finalizing")
            await asyncio.to_thread(self._store.save, self.batch)
        progress = await asyncio.to_thread(resume, self.batch, self._output, self._errors)
        if end == "expired":
            await asyncio.to_thread(self._write_expired, progress.answered)
            progress = await asyncio.to_thread(resume, self.batch, self._output, self._errors)
        outputs = await asyncio.to_thread(self._outputs)
        known = {file.id for file in outputs}
        finished = self.batch.to(
            end,
            counts=progress.counts,
            has_output=self.batch.output_file_id in known,
            has_errors=self.batch.error_file_id in known,
        )
        await asyncio.to_thread(self._store.finish, finished, outputs)
        self.batch = finished

    def _write_expired(self, answered: set[str]) -> None:
        for request in self._unanswered(answered):
            _append(self._errors, expired_line(request))

    def _outputs(self) -> list[StoredFile]:
        """The files of answers that are not empty, safe on the disk."""
        found = []
        now = int(time.time())
        kept_s = self.batch.output_expires_s
        for name, path in (("output", self._output), ("error", self._errors)):
            if path.exists():
                sync(path)
                found.append(
                    StoredFile(
                        id=path.name,
                        filename=f"{self.batch.id}_{name}.jsonl",
                        purpose=OUTPUT,
                        num_bytes=path.stat().st_size,
                        created_at=now,
                        expires_at=None if kept_s is None else now + kept_s,
                    )
                )
        if found:
            sync(self._output.parent)
        return found


def _append(path: Path, line: bytes) -> None:
    """Adds a line to its end or not at all, unless the process is killed meanwhile.

    It may still be lost in a power cut. Then its request is answered again, which costs less than
    waiting for the disk with each answer.
    """
    # Unbuffered: what a buffer still holds of a line that failed would be written on closing.
    with path.open("ab", buffering=0) as file:
        before = file.tell()
        try:
            rest = memoryview(line)
            while rest:
                rest = rest[file.write(rest) :]
        except OSError:
            with suppress(OSError):
                os.truncate(path, before)
            raise
