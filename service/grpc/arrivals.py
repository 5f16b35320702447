"""Receives the messages of gRPC calls, and bounds the memory that they need together.

gRPC tells the size of a message only when it has arrived, and it arrives only when it is asked for.
So calls with one message take turns: few are received at a time, and one that takes long gives up
its place if another call needs it. A short message is there at once. What has arrived shares the
budget of all bodies.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
)
from time import perf_counter
from typing import TypeVar

from google.protobuf.message import Message

from engine.scheduling.admission import Reservation
from service.body_budget import SHORT_BODY_BYTES, BodyBudget
from service.errors import BodyTimeout, InvalidField
from service.grpc.messages import Undecodable

MAX_ARRIVING = 16
"""Messages that are received at a time. Each may grow to the largest that the server accepts."""

T = TypeVar("T")

_MAY_STAY_S = 0.1
"""How long a message keeps its place while other calls wait for one."""


class Arrivals:
    """Use it on the event loop."""

    def __init__(self, budget: BodyBudget, max_wait_s: float) -> None:
        self._budget = budget
        self._max_wait_s = max_wait_s
        self._places = asyncio.Semaphore(MAX_ARRIVING)
        self._num_waiting = 0
        self._turn = asyncio.Lock()
        self._overdue: dict[_Arrival, None] = {}  # a set in order of arrival

    async def receive(self, messages: AsyncIterable[bytes], held: AsyncExitStack) -> bytes:
        """The only message of a call. Its memory is counted until `held` closes.

        Raises QueueFull if it takes long, by its size or by its sender, while others wait.
        """
        async with self._place() as arrival:
            data = await anext(aiter(messages), None)
            if data is None:
                raise InvalidField("the call has no message", code="missing_message")
            if len(data) > SHORT_BODY_BYTES:
                await held.enter_async_context(self._budget.hold(len(data)))
            arrival.ends()
        return data

    async def decode_in_turn(self, decode: Callable[[bytes], T], data: bytes) -> T:
        """Decodes large messages one after the other. Each holds the event loop for some time, and
        then leaves it to others for as long."""
        if len(data) <= SHORT_BODY_BYTES:
            return decode(data)
        async with self._turn:
            started_at = perf_counter()
            message = decode(data)
            await asyncio.sleep(perf_counter() - started_at)
            return message

    @asynccontextmanager
    async def _place(self) -> AsyncIterator[_Arrival]:
        await self._wait_for_place()
        loop = asyncio.get_running_loop()
        arrival = _Arrival()
        timer = loop.call_later(_MAY_STAY_S, self._is_overdue, arrival)
        try:
            async with asyncio.timeout(self._max_wait_s) as arrival.timeout:
                yield arrival
        except TimeoutError:
            if arrival.must_go:
                raise self._budget.refuse_arrival(MAX_ARRIVING) from None
            raise BodyTimeout(
                f"the message did not arrive within {self._max_wait_s:g} s", limit=self._max_wait_s
            ) from None
        finally:
            timer.cancel()
            self._overdue.pop(arrival, None)
            self._places.release()

    async def _wait_for_place(self) -> None:
        self._num_waiting += 1
        try:
            if self._places.locked():
                self._send_away()
            await self._places.acquire()
        finally:
            self._num_waiting -= 1

    def _is_overdue(self, arrival: _Arrival) -> None:
        self._overdue[arrival] = None
        if self._num_waiting:
            self._send_away()

    def _send_away(self) -> None:
        """Makes room for a call that waits, if a message has had its time."""
        arrival = next(iter(self._overdue), None)
        if arrival is not None:
            del self._overdue[arrival]
            arrival.go()

    def hold(
        self, request: Message | Undecodable
    ) -> AbstractAsyncContextManager[Reservation] | None:
        """Holds the memory of one message of a stream while the context is open; None if the
        message is short."""
        size = 0 if isinstance(request, Undecodable) else request.ByteSize()
        return self._budget.hold(size) if size > SHORT_BODY_BYTES else None

    def hold_pieces(self) -> AbstractContextManager[Callable[[int], None]]:
        """Yields a function to call with the size of each piece of a document."""
        return self._budget.hold_pieces()


class _Arrival:
    """One message that is being received."""

    def __init__(self) -> None:
        self.timeout: asyncio.Timeout | None = None
        self.must_go = False
        self._has_arrived = False

    def go(self) -> None:
        if self.timeout is not None and not self._has_arrived and not self.timeout.expired():
            self.must_go = True
            self.timeout.reschedule(asyncio.get_running_loop().time())

    def ends(self) -> None:
        self._has_arrived = True
