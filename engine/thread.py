"""The bridge between asyncio and the device: one thread owns the device, callers hold futures.

Every method is called on the event loop, and futures change on the loop only: the thread hands
over a whole unit's results in one wake-up. Who leaves, by cancelling or at its deadline, is
answered and taken out of the queue by the loop at once, whatever the thread is doing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Generic, Literal, TypeVar, TypeVarTuple

from engine.deadline import Deadline
from engine.errors import DeadlineExceeded, EngineUnavailable, LLNError, QueueFull
from engine.jobs import Job, Unit
from engine.observer import CallKind, EngineObserver
from engine.orders import Delivered, Order, Outcome, Outcomes, answer_to, tell_all
from engine.scheduler import Scheduler
from engine.throughput import Throughput
from engine.unit_runner import Stepwise, UnitRunner
from engine.waiting_line import WaitingLine

PayloadT = TypeVar("PayloadT")
ValueT = TypeVar("ValueT")
ResultT = TypeVar("ResultT")
Args = TypeVarTuple("Args")

logger = logging.getLogger(__name__)

_MIN_RETRY_S = 0.05  # sooner, a client would only knock


class DeviceThread(Generic[PayloadT, ResultT]):
    """Runs units of work in the scheduler's order and answers those who wait for them."""

    def __init__(
        self,
        *,
        run: Callable[[str, Sequence[PayloadT]], Sequence[ResultT]],
        sweep: Callable[[str, PayloadT], Stepwise[ResultT]],
        scheduler: Scheduler,
        observer: EngineObserver | None = None,
        name: str = "lln-device",
    ) -> None:
        self._scheduler = scheduler
        self._observer = observer or EngineObserver()
        self._units = UnitRunner(
            run=run, sweep=sweep, finished=self._finish, observer=self._observer
        )
        self._changed = threading.Condition(threading.Lock())  # guards all below and the scheduler
        self._telling = threading.Lock()
        self._state: Literal["starting", "accepting", "draining", "ended", "dead"] = "starting"
        self._num_ongoing = 0  # works whose next part may come yet
        self._line = WaitingLine(self._need_not_wait)
        self._running: Unit | None = None
        self._running_since = 0.0
        # Daemonic: a unit that never returns must not keep the process from ending.
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._ended = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop
        self._token_rate = Throughput()
        self._call_rate = Throughput()

    # For the loop

    @property
    def alive(self) -> bool:
        """Whether the thread runs: False before start, after stop, and after it failed."""
        return self._state != "dead" and self._thread.is_alive()

    @property
    def accepting(self) -> bool:
        """Whether new work is let in."""
        return self._state == "accepting"

    @property
    def busy_s(self) -> float:
        """How long the unit that runs now has been running; 0 between units."""
        with self._changed:
            return 0.0 if self._running is None else time.monotonic() - self._running_since

    async def start(self) -> None:
        """Start the thread, for the loop this runs on. A stopped thread cannot start again."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()
        self._state = "accepting"

    def stop_accepting(self) -> None:
        """Refuse new work from now on; accepted work is still done."""
        with self._changed:
            if self._state not in ("ended", "dead"):
                self._state = "draining"
            self._changed.notify()
        self._line.call_next()  # who waits for room waits in vain

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Work in parts: as long as it goes on, a stop waits for parts that are yet to come."""
        with self._changed:
            self._num_ongoing += 1
        try:
            yield
        finally:
            with self._changed:
                self._num_ongoing -= 1
                self._changed.notify()

    def has_room(self, num_tokens: int) -> bool:
        """Whether texts of so many tokens would be let in now."""
        with self._changed:
            return self._scheduler.can_add(num_tokens)

    async def wait_for_room(self, num_tokens: int) -> None:
        """Until texts of so many tokens would be let in, or are refused for another reason than
        the want of room. Who does not let go of the loop in between finds it so."""
        await self._line.wait(num_tokens)

    def _need_not_wait(self, num_tokens: int) -> bool:
        return not self.accepting or self.has_room(num_tokens)

    async def stop(self, drain: Deadline) -> None:
        """Finish accepted work, then end; what is left at the deadline fails.

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

    def submit(
        self, model: str, payload: PayloadT, tokens: int, timeout_s: float | None = None
    ) -> asyncio.Future[Delivered[ResultT]]:
        """Queue one short text. Raises QueueFull, EngineUnavailable or DeadlineExceeded at the
        door."""
        return self.submit_all(model, [Order(payload=payload, tokens=tokens)], timeout_s)[0]

    def submit_all(
        self,
        model: str,
        orders: Sequence[Order[PayloadT]],
        timeout_s: float | None = None,
        *,
        follows: bool = False,
    ) -> list[asyncio.Future[Delivered[ResultT]]]:
        """Queue the texts of one call: all of them, or none. What follows a part that was let in,
        of work that is `going_on`, is refused neither for want of room nor by a stop."""
        num_tokens = sum(order.tokens for order in orders)
        now = time.monotonic()
        jobs = [self._job(model, order, now, timeout_s) for order in orders]
        room = None if follows else partial(self._check_room, num_tokens)
        self._admit(jobs, timeout_s, room=room)
        for job in jobs:
            self._observer.accepted(model=model, tokens=job.tokens)
        self._tell_queue()
        return [job.future for job in jobs]

    def call(
        self,
        fn: Callable[[*Args], ValueT],
        *args: *Args,
        kind: CallKind = "diagnosis",
        model: str = "",
        tokens: int = 0,
        timeout_s: float | None = None,
        follows: bool = False,
    ) -> asyncio.Future[Delivered[ValueT]]:
        """Queue work that needs the device to itself: it runs when no text waits, or when the
        scheduler owes it its turn. Refused like `submit_all`."""
        order = Order(payload=partial(fn, *args), tokens=tokens)
        job = self._job(model, order, time.monotonic(), timeout_s)
        job.kind = kind
        self._admit([job], timeout_s, room=None if follows else self._check_room_for_call)
        return job.future

    def _job(self, model: str, order: Order[Any], now: float, timeout_s: float | None) -> Job:
        return Job(
            model=model,
            tokens=order.tokens,
            payload=order.payload,
            # Not self._loop, which a thread not yet started lacks; it refuses the job later.
            future=asyncio.get_running_loop().create_future(),
            enqueued_at=now,
            deadline=None if timeout_s is None else now + timeout_s,
            kind="sweep_tile" if order.sweep else "batch",
            priority=order.priority,
            num_bytes=order.num_bytes,
            seconds=order.seconds,
            on_event=order.on_event,
        )

    def _admit(
        self, jobs: Sequence[Job], timeout_s: float | None, *, room: Callable[[], None] | None
    ) -> None:
        """Check and add under one lock, so that no work slips in behind a thread that just died.
        Without a check for room they follow what was let in."""
        try:
            with self._changed:
                self._check_open(follows=room is None)
                _check_timeout(timeout_s)
                if room is not None:
                    room()
                for job in jobs:
                    self._scheduler.add(job)
                self._changed.notify()
        except LLNError as error:
            self._observer.rejected(reason=error.code)
            raise
        for job in jobs:
            self._watch(job, timeout_s)

    def _check_open(self, *, follows: bool) -> None:
        if self._state == "accepting" or (follows and self._state == "draining"):
            return
        why = {"starting": "has not started", "dead": "failed"}.get(self._state, "is stopping")
        raise EngineUnavailable(f"The engine takes no work: it {why}.")

    def _check_room(self, num_tokens: int) -> None:
        scheduler = self._scheduler
        if scheduler.can_add(num_tokens):
            return
        needed = scheduler.waiting_tokens + num_tokens
        limit = scheduler.max_queue_tokens
        excess = min(needed - limit, scheduler.waiting_tokens)
        raise QueueFull(
            f"The queue takes {limit} tokens, and with these {num_tokens} would hold {needed}.",
            limit=limit,
            actual=needed,
            retry_after_s=max(self._token_rate.seconds_for(excess), _MIN_RETRY_S),
        )

    def _check_room_for_call(self) -> None:
        if self._scheduler.can_add_call():
            return
        limit = self._scheduler.max_queue_calls
        raise QueueFull(
            f"The queue takes {limit} diagnoses and benchmarks, and is full.",
            limit=limit,
            actual=self._scheduler.num_waiting_calls + 1,
            retry_after_s=max(self._call_rate.seconds_for(1), _MIN_RETRY_S),
        )

    def _watch(self, job: Job, timeout_s: float | None) -> None:
        """Notice when the caller leaves, and answer it at its deadline."""
        job.future.add_done_callback(partial(self._on_done, job))
        if timeout_s is not None:
            job.timer = self._loop.call_later(timeout_s, self._expire, job, timeout_s)

    def _on_done(self, job: Job, future: asyncio.Future[Any]) -> None:
        if job.timer is not None:
            job.timer.cancel()
        if future.cancelled():
            self._forget(job, "caller_left")
        else:
            # Marks it as read: who awaits many futures stops at the first failure, and the others
            # are no news for asyncio's log.
            future.exception()

    def _expire(self, job: Job, timeout_s: float) -> None:
        if job.future.done():
            return
        waited_s = time.monotonic() - job.enqueued_at
        job.future.set_exception(_deadline_exceeded(timeout_s, waited_s))
        self._forget(job, "deadline")

    def _forget(self, job: Job, reason: Literal["caller_left", "deadline"]) -> None:
        """Take a job out of the queue, if it is still there. The thread drops what it holds of a
        sweep that is no longer there, so that this loop need not free gigabytes."""
        with self._changed:
            was_waiting = self._scheduler.remove(job)
            self._changed.notify()  # it may have been all that a stop waited for
        if was_waiting:
            self._observer.cancelled(reason=reason)
            self._tell_queue()

    def _abandon(self, drain: Deadline) -> None:
        with self._changed:
            if self._state != "dead":
                self._state = "ended"
            jobs = self._unanswered()
            self._changed.notify()
        for job in jobs:
            message = f"The engine stopped before this work was done, after {drain.timeout_s} s."
            Outcome(job, error=EngineUnavailable(message, limit=drain.timeout_s)).tell()
        self._tell_queue()

    def _bury(self, outcomes: Outcomes) -> None:
        tell_all(outcomes)
        self._tell_queue()

    # For both

    def _unanswered(self) -> list[Job]:
        """The jobs that run or wait; these no longer wait after."""
        running = () if self._running is None else self._running.jobs
        # A sweep is in both places while one of its tiles runs.
        return list(dict.fromkeys([*running, *self._scheduler.remove_all()]))

    def _tell_queue(self) -> None:
        scheduler = self._scheduler
        with self._telling:  # or what was read first might be told last
            with self._changed:
                depth, tokens = scheduler.num_waiting, scheduler.waiting_tokens
            self._observer.queue_changed(depth=depth, tokens=tokens)
        if self._line:
            self._on_loop_if_open(self._line.call_next)

    # For the thread

    def _main(self) -> None:
        try:
            while self._step():
                pass
        except BaseException as error:
            self._die(error)
        finally:
            self._on_loop_if_open(self._ended.set)

    def _step(self) -> bool:
        """Schedule, run, deliver; False at the end. A function of its own, so that a thread that
        sleeps holds on to no results."""
        unit = self._next_unit()
        if unit is None:
            return False
        if outcomes := self._serve(unit):
            self._on_loop_if_open(tell_all, outcomes)
        return True

    def _next_unit(self) -> Unit | None:
        """Wait for work; None when there is none left and no more will come."""
        while True:
            with self._changed:
                self._running = None
                given_up = [job for job in self._units.sweeping if not self._scheduler.holds(job)]
                if not given_up:
                    unit = self._scheduler.next_unit(time.monotonic())
                    if unit is not None:
                        self._running, self._running_since = unit, time.monotonic()
                        return unit
                    if self._is_done:
                        self._state = "ended"
                        return None
                    self._changed.wait()
            self._drop(given_up)

    @property
    def _is_done(self) -> bool:
        """Whether no work is left, and no more will come."""
        if self._state == "draining" and not self._num_ongoing:
            return self._scheduler.is_empty
        return self._state == "ended"

    def _drop(self, given_up: Sequence[Job]) -> None:
        """Outside the lock, since it takes time."""
        for job in given_up:
            self._units.drop(job)

    def _serve(self, unit: Unit) -> Outcomes:
        started_at = time.monotonic()
        begins = [job for job in unit.jobs if job.started_at is None]
        if unit.kind in ("batch", "sweep_tile") and begins:
            self._tell_queue()
            for job in begins:
                job.started_at = started_at
                self._observer.waited(seconds=started_at - job.enqueued_at)
        if unit.preempts:
            self._observer.preempted()
        outcomes = self._units.run(unit)
        if unit.kind == "sweep_tile" and not self._units.holds(unit.jobs[0]):
            self._end_sweep(unit.jobs[0], outcomes)
        return outcomes

    def _end_sweep(self, job: Job, outcomes: Outcomes) -> None:
        with self._changed:
            self._scheduler.remove(job)
        for outcome in outcomes:
            if outcome.result is not None:
                self._token_rate.add(job.tokens, outcome.result.compute_s)

    def _finish(self, unit: Unit, compute_s: float, *, failed: bool) -> None:
        with self._changed:
            self._scheduler.finished(unit, compute_s)
        if not failed and unit.kind != "sweep_tile":
            is_batch = unit.kind == "batch"
            rate, work = (self._token_rate, unit.tokens) if is_batch else (self._call_rate, 1)
            rate.add(work, compute_s)
        self._observer.unit_finished(
            unit=unit.kind,
            model=unit.model,
            sequences=len(unit.jobs),
            tokens=unit.tokens,
            compute_s=compute_s,
            failed=failed,
        )

    def _die(self, error: BaseException) -> None:
        """Answer everyone. Work comes in under the same lock, so nobody is missed."""
        logger.critical("The device thread died", exc_info=error)
        with self._changed:
            self._state = "dead"
            jobs = self._unanswered()
        outcomes = [Outcome(job, error=answer_to(error)) for job in jobs]
        self._on_loop_if_open(self._bury, outcomes)

    def _on_loop_if_open(self, callback: Callable[[*Args], object], *args: *Args) -> None:
        """A closed loop has nobody left to tell."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *args)


def _check_timeout(timeout_s: float | None) -> None:
    if timeout_s is not None and timeout_s <= 0:
        raise _deadline_exceeded(timeout_s, 0.0)


def _deadline_exceeded(timeout_s: float, waited_s: float) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"The deadline of {timeout_s:g} s passed before the work was done.",
        limit=timeout_s,
        actual=round(waited_s, 6),
    )
