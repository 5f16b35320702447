"""The bridge between asyncio and the device: one thread owns the device, callers hold futures.

Call every method on the event loop. Futures change on the loop only: the thread hands over the
results of a whole unit in one wake-up. A request that is cancelled or passes its deadline leaves
the queue immediately, whatever the thread is doing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

from engine.errors import EngineUnavailable, LLNError
from engine.scheduling.admission import AdmissionQueue
from engine.scheduling.deadline import Deadline, deadline_exceeded
from engine.scheduling.executor import TiledWork, UnitExecutor
from engine.scheduling.observer import EngineObserver
from engine.scheduling.request import (
    Entry,
    PayloadT,
    Request,
    TimedResult,
    Unit,
    Update,
    error_for_caller,
)
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.session import Args, ResultT, Session, Submitter
from engine.scheduling.shared_work import SharedWork
from engine.types import Outstanding

logger = logging.getLogger(__name__)

IDLE_S = 1.0
"""The thread is idle when it has had no work for so long."""

IDLE_AGAIN_S = 10.0
"""How often it says so while it stays idle: meanwhile others may tokenise, or write answers."""


class DeviceWorker(Submitter[PayloadT, ResultT]):
    """Runs units in the scheduler's order and answers the callers that wait for them."""

    def __init__(
        self,
        *,
        run_batch: Callable[[str, Sequence[PayloadT]], Sequence[ResultT]],
        open_tiled: Callable[[str, PayloadT], TiledWork[ResultT]],
        scheduler: Scheduler,
        observer: EngineObserver | None = None,
        on_idle: Callable[[], None] = lambda: None,
        name: str = "lln-device",
    ) -> None:
        """`on_idle` runs on the thread when it becomes idle, and now and then while it is."""
        self._work = SharedWork(scheduler)
        self._on_idle = on_idle
        self._observer = observer or EngineObserver()
        self._executor = UnitExecutor(
            run_batch=run_batch,
            open_tiled=open_tiled,
            on_finished=self._record_unit,
            observer=self._observer,
        )
        self._reporting = threading.Lock()
        self._admission = AdmissionQueue(lambda tokens: not self.accepting or self.has_room(tokens))
        # A daemon: a unit that never returns must not keep the process from ending.
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._ended = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop

    @property
    def alive(self) -> bool:
        """Whether the thread runs: False before the start, after a stop and after a failure."""
        return not self._work.is_dead and self._thread.is_alive()

    @property
    def accepting(self) -> bool:
        """Whether the worker accepts new work."""
        return self._work.is_accepting

    @property
    def busy_s(self) -> float:
        """How long the current unit has been running; 0 between units."""
        return self._work.busy_s

    @property
    def outstanding(self) -> Outstanding:
        """The tokens of accepted work that the device has still to read."""
        return self._work.outstanding

    async def start(self) -> None:
        """Start the thread. It belongs to this event loop and cannot start again after a stop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()
        self._work.begin()

    def stop_accepting(self) -> None:
        """Refuse new work from now on. Accepted work still runs."""
        self._work.stop_accepting()
        self._admission.admit_next()  # callers that wait for room are refused when they submit

    async def stop(self, drain: Deadline) -> None:
        """Finish accepted work, then end. Work that is left at the deadline fails.

        A unit that still runs then cannot be interrupted: its callers are answered now, and the
        thread ends when the unit does.
        """
        self.stop_accepting()
        if self._thread.ident is None:
            return
        try:
            async with asyncio.timeout(drain.left_s):
                await self._ended.wait()
        except TimeoutError:
            self._abandon(drain)
        else:
            self._thread.join()

    def has_room(self, num_tokens: int) -> bool:
        """Whether there is room in the queue for texts of this many tokens."""
        return self._work.has_room(num_tokens)

    async def wait_for_room(self, num_tokens: int) -> None:
        """Return when there is room for texts of this many tokens, or when they would be refused
        for another reason. The room is there until the caller awaits."""
        await self._admission.wait(num_tokens)

    @contextmanager
    def session(self) -> Iterator[Session[PayloadT, ResultT]]:
        """Submit work in several parts. Stopping waits for open sessions."""
        self._work.open_session()
        try:
            yield Session(self._admit)
        finally:
            self._work.close_session()

    def submit(
        self, requests: Sequence[Request[PayloadT]], timeout_s: float | None = None
    ) -> list[asyncio.Future[TimedResult[ResultT]]]:
        return self._admit(requests, timeout_s, False, 0)

    def _admit(
        self,
        requests: Sequence[Request[PayloadT]],
        timeout_s: float | None,
        is_later_part: bool,
        later_tokens: int,
    ) -> list[asyncio.Future[TimedResult[ResultT]]]:
        now = time.monotonic()
        # Not self._loop: a worker that has not started has none, and refuses the request below.
        loop = asyncio.get_running_loop()
        deadline = None if timeout_s is None else now + timeout_s
        entries = [
            Entry(request=request, future=loop.create_future(), enqueued_at=now, deadline=deadline)
            for request in requests
        ]
        try:
            self._work.add(
                entries, timeout_s, is_later_part=is_later_part, later_tokens=later_tokens
            )
        except LLNError as error:
            self._observer.rejected(reason=error.code)
            raise
        for entry in entries:
            self._watch(entry, timeout_s)
        texts = [request for request in requests if not request.is_call]
        for text in texts:
            self._observer.accepted(model=text.model, tokens=text.tokens)
        if texts:
            self._report_queue()
        return [entry.future for entry in entries]

    def _watch(self, entry: Entry, timeout_s: float | None) -> None:
        """Notice when the caller leaves, and answer it at its deadline."""
        entry.future.add_done_callback(partial(self._on_done, entry))
        if timeout_s is not None:
            entry.timer = self._loop.call_later(timeout_s, self._expire, entry, timeout_s)

    def _on_done(self, entry: Entry, future: asyncio.Future[Any]) -> None:
        if entry.timer is not None:
            entry.timer.cancel()
        if future.cancelled():
            self._forget(entry, "caller_left")
        else:
            # Marks the exception as retrieved: a caller that awaits many futures stops at the first
            # failure, and asyncio would log the others.
            future.exception()

    def _expire(self, entry: Entry, timeout_s: float) -> None:
        if entry.future.done():
            return
        waited_s = time.monotonic() - entry.enqueued_at
        entry.future.set_exception(deadline_exceeded(timeout_s, waited_s))
        self._forget(entry, "deadline")

    def _forget(self, entry: Entry, reason: Literal["caller_left", "deadline"]) -> None:
        if self._work.remove(entry):
            self._observer.cancelled(reason=reason)
            self._report_queue()

    def _abandon(self, drain: Deadline) -> None:
        entries = self._work.abandon()
        message = f"The engine stopped before this work was done, after {drain.timeout_s} s."
        self._fail(
            Update(entry, error=EngineUnavailable(message, limit=drain.timeout_s))
            for entry in entries
        )

    def _fail(self, updates: Iterable[Update]) -> None:
        _deliver(updates)
        self._report_queue()

    def _report_queue(self) -> None:
        with self._reporting:  # otherwise an older reading might be reported last
            waiting = self._work.waiting
            self._observer.queue_changed(depth=waiting.num_texts, tokens=waiting.num_tokens)
        if self._admission:
            self._call_on_loop(self._admission.admit_next)

    def _call_on_loop(self, callback: Callable[[*Args], object], *args: *Args) -> None:
        """On a closed loop no caller is left to answer."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *args)

    # On the device's thread

    def _main(self) -> None:
        try:
            while self._step():
                pass
        except BaseException as error:
            self._die(error)
        finally:
            self._call_on_loop(self._ended.set)

    def _step(self) -> bool:
        """Schedule, run, deliver; False at the end. This is a function of its own so that a thread
        that sleeps does not hold on to results."""
        unit = self._next_unit()
        if unit is None:
            return False
        if updates := self._run(unit):
            self._call_on_loop(_deliver, updates)
        return True

    def _next_unit(self) -> Unit | None:
        """Wait for work; None when there is none left and no more will come."""
        patience_s = IDLE_S
        while True:
            turn = self._work.next_turn(self._executor.begun, patience_s=patience_s)
            if turn.unit is not None or turn.is_last:
                return turn.unit
            self._drop(turn.given_up)
            if turn.is_idle:
                patience_s = IDLE_AGAIN_S
                self._rest()

    def _drop(self, given_up: Iterable[Entry]) -> None:
        """Call it without the lock: freeing memory takes time."""
        for entry in given_up:
            self._executor.drop(entry)

    def _rest(self) -> None:
        try:
            self._on_idle()
        except Exception:  # nobody waits for it, so it must cost nobody the thread
            logger.exception("What an idle device does failed")

    def _run(self, unit: Unit) -> list[Update]:
        started_at = time.monotonic()
        starting = [entry for entry in unit.entries if entry.started_at is None]
        if starting and not unit.entries[0].request.is_call:
            self._report_queue()
            for entry in starting:
                entry.started_at = started_at
                self._observer.waited(seconds=started_at - entry.enqueued_at)
        if unit.interrupts_tiled:
            self._observer.preempted()
        updates = self._executor.run(unit)
        if unit.is_tile and unit.entries[0] not in self._executor.begun:
            self._work.end_tiled(unit.entries[0], updates)
        return updates

    def _record_unit(self, unit: Unit, compute_s: float, failed: bool) -> None:
        self._work.record(unit, compute_s, failed=failed)
        self._observer.unit_finished(
            unit=unit.kind,
            model=unit.model,
            sequences=len(unit.entries),
            tokens=unit.tokens,
            compute_s=compute_s,
            failed=failed,
        )

    def _die(self, error: BaseException) -> None:
        """Answer everyone."""
        logger.critical("The device thread died", exc_info=error)
        entries = self._work.die()
        updates = [Update(entry, error=error_for_caller(error)) for entry in entries]
        self._call_on_loop(self._fail, updates)


def _deliver(updates: Iterable[Update]) -> None:
    for update in updates:
        update.deliver()
