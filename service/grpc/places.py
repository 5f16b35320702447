"""Places for messages that are being received. A slow message loses its place if another call needs
it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from engine.errors import LLNError
from service.errors import BodyTimeout

_MAY_STAY_S = 0.1
"""How long a message keeps its place while other calls wait for one."""


class Places:
    """`refusal` makes the error of a message that must go. Use it on the event loop."""

    def __init__(self, number: int, max_wait_s: float, refusal: Callable[[], LLNError]) -> None:
        self._max_wait_s = max_wait_s
        self._refusal = refusal
        self._free = asyncio.Semaphore(number)
        self._num_waiting = 0
        self._overdue: dict[Arrival, None] = {}  # a set in order of arrival

    @asynccontextmanager
    async def place(self) -> AsyncIterator[Arrival]:
        await self._wait_for_place()
        loop = asyncio.get_running_loop()
        timeout = asyncio.timeout(self._max_wait_s)
        arrival = Arrival(timeout)
        timer = loop.call_later(_MAY_STAY_S, self._is_overdue, arrival)
        try:
            async with timeout:
                yield arrival
        except TimeoutError:
            if arrival.must_go:
                raise self._refusal() from None
            raise BodyTimeout(
                f"the message did not arrive within {self._max_wait_s:g} s", limit=self._max_wait_s
            ) from None
        finally:
            timer.cancel()
            self._overdue.pop(arrival, None)
            self._free.release()

    async def _wait_for_place(self) -> None:
        self._num_waiting += 1
        try:
            if self._free.locked():
                self._send_away()
            await self._free.acquire()
        finally:
            self._num_waiting -= 1

    def _is_overdue(self, arrival: Arrival) -> None:
        self._overdue[arrival] = None
        if self._num_waiting:
            self._send_away()

    def _send_away(self) -> None:
        """Makes room for a call that waits, if a message has had its time."""
        arrival = next(iter(self._overdue), None)
        if arrival is not None:
            del self._overdue[arrival]
            arrival.go()


class Arrival:
    """One message that is being received, until its timeout ends or it has what it waits for."""

    def __init__(self, timeout: asyncio.Timeout) -> None:
        self._timeout = timeout
        self._is_over = False
        self.must_go = False

    def go(self) -> None:
        if not self._is_over and not self._timeout.expired():
            self.must_go = True
            self._timeout.reschedule(asyncio.get_running_loop().time())

    def has_arrived(self) -> None:
        """From now on it waits for room, and the budget says how long it may."""
        if not self.must_go and not self._timeout.expired():
            self._timeout.reschedule(None)

    def ends(self) -> None:
        self._is_over = True
