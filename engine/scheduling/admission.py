"""What may begin, and when: the limits of the queue, callers that wait for room, and memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from engine.errors import QueueFull
from engine.scheduling.request import Request
from engine.scheduling.scheduler import Scheduler

_MIN_RETRY_S = 0.05  # a client that comes back sooner would only be refused again


class Throughput:
    """Work per second, over about the last ten units."""

    def __init__(self) -> None:
        self._work = 0.0
        self._seconds = 0.0

    def add(self, work: float, seconds: float) -> None:
        self._work = 0.9 * self._work + work
        self._seconds = 0.9 * self._seconds + seconds

    def seconds_for(self, work: float) -> float:
        """How long this much work takes; one second as long as nothing has been measured."""
        return work * self._seconds / self._work if self._work else 1.0


class QueueLimits:
    """Refuses requests that find the queue full, and says when to come back. The owner of the
    scheduler holds its lock around every use."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.token_rate = Throughput()
        self.call_rate = Throughput()

    def check(self, requests: Sequence[Request[Any]], later_tokens: int = 0) -> None:
        """Raise QueueFull unless there is room for all of these texts and for this many tokens that
        follow them, or for all of these calls."""
        if any(request.is_call for request in requests):
            self._check_calls()
        else:
            self._check_texts(later_tokens + sum(request.tokens for request in requests))

    def _check_texts(self, num_tokens: int) -> None:
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
            retry_after_s=max(self.token_rate.seconds_for(excess), _MIN_RETRY_S),
        )

    def _check_calls(self) -> None:
        if self._scheduler.can_add_call():
            return
        limit = self._scheduler.max_queue_calls
        raise QueueFull(
            f"The queue takes {limit} diagnoses and benchmarks, and is full.",
            limit=limit,
            actual=self._scheduler.num_waiting_calls + 1,
            retry_after_s=max(self.call_rate.seconds_for(1), _MIN_RETRY_S),
        )


@dataclass(eq=False)
class _Waiter:
    num_tokens: int
    admitted: asyncio.Event = field(default_factory=asyncio.Event)


class AdmissionQueue:
    """Callers that wait for room in the queue, on the event loop.

    The first caller that fits is admitted, in order of arrival. Smaller texts may overtake larger
    ones: callers that do not wait here keep taking room, so one large text would hold up everybody
    behind it. The price is that a large text may wait until its deadline.

    One caller is admitted at a time, since the room that it takes is not there for the next.
    """

    def __init__(self, has_room: Callable[[int], bool]) -> None:
        self._has_room = has_room
        self._waiters: dict[_Waiter, None] = {}  # a set in order of arrival
        self._admitted: _Waiter | None = None

    def __len__(self) -> int:
        return len(self._waiters)

    async def wait(self, num_tokens: int) -> None:
        """Return when there is room for this many tokens. It is there until the caller awaits."""
        waiter = _Waiter(num_tokens)
        self._waiters[waiter] = None
        try:
            while True:
                self.admit_next()
                await waiter.admitted.wait()
                if self._has_room(num_tokens):
                    return
                self._withdraw(waiter)  # a caller that does not wait here was faster
        finally:
            self._withdraw(waiter)
            del self._waiters[waiter]
            # Not now: the caller takes its room, or does not want it, only after this returns.
            asyncio.get_running_loop().call_soon(self.admit_next)

    def admit_next(self) -> None:
        """Admit the first caller that fits. Call this whenever there may be more room."""
        if self._admitted is not None:
            return
        fitting = (waiter for waiter in self._waiters if self._has_room(waiter.num_tokens))
        self._admitted = next(fitting, None)
        if self._admitted is not None:
            self._admitted.admitted.set()

    def _withdraw(self, waiter: _Waiter) -> None:
        if self._admitted is waiter:
            self._admitted = None
            waiter.admitted.clear()


class MemoryBudget:
    """Memory for work of the event loop. Work begins in order of arrival, when its memory fits
    beside that of the others. Work that is alone may try whatever its size."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.reserved = 0
        self._head_of_line = asyncio.Lock()
        self._freed = asyncio.Event()

    @asynccontextmanager
    async def reserve(self, num_bytes: int) -> AsyncIterator[Reservation]:
        """Wait for the memory."""
        async with self._head_of_line:
            while not self._fits(num_bytes):
                self._freed.clear()
                await self._freed.wait()
            reservation = Reservation(self, num_bytes)
        try:
            yield reservation
        finally:
            reservation.resize(0)

    def _fits(self, num_bytes: int) -> bool:
        return not self.reserved or self.reserved + num_bytes <= self.max_bytes

    def add(self, num_bytes: int) -> None:
        """Reserve more, or less if it is negative, whether or not it fits."""
        self.reserved += num_bytes
        if num_bytes < 0:
            self._freed.set()


class Reservation:
    """Memory that is reserved in a budget."""

    def __init__(self, budget: MemoryBudget, num_bytes: int) -> None:
        self._budget = budget
        self.num_bytes = 0
        self.resize(num_bytes)

    def resize(self, num_bytes: int) -> None:
        self._budget.add(num_bytes - self.num_bytes)
        self.num_bytes = num_bytes

    def grow(self, num_bytes: int) -> bool:
        """Reserve more, if it fits beside the others. Work that is alone may always grow."""
        others = self._budget.reserved - self.num_bytes
        if others and self._budget.reserved + num_bytes > self._budget.max_bytes:
            return False
        self.resize(self.num_bytes + num_bytes)
        return True
