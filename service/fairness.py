"""Keeps one client from holding up others: timeouts for slow clients, and yielding the event loop.

A client that stops sending, or stops reading its response, holds memory and a request slot. The
timeouts here free both.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

from engine.platform.turns import quick_turns
from engine.scheduling.deadline import deadline_exceeded
from service.errors import AnswerNotTaken, BodyTimeout

Item = TypeVar("Item")

# A worker thread would not help: encoding JSON and protobuf holds the interpreter's lock.
_YIELD_EVERY_S = 0.004


async def receive_within(messages: AsyncIterable[Item], timeout_s: float) -> AsyncIterator[Item]:
    """Yields the messages. Raises BodyTimeout if one takes longer than `timeout_s` to arrive."""
    iterator = aiter(messages)
    while True:
        try:
            async with read_timeout(timeout_s):
                message = await anext(iterator)
        except StopAsyncIteration:
            return
        yield message


@asynccontextmanager
async def read_timeout(seconds: float) -> AsyncIterator[asyncio.Timeout]:
    """Raises BodyTimeout when the time is up. The caller may reschedule the timeout it yields."""
    try:
        async with asyncio.timeout(seconds) as timeout:
            yield timeout
    except TimeoutError:
        raise BodyTimeout(
            f"no more of the request arrived within {seconds:g} s", limit=seconds
        ) from None


@asynccontextmanager
async def read_by_then(timeout_s: float, what: str = "the document was") -> AsyncIterator[None]:
    """Raises DeadlineExceeded if what arrives in pieces is not there in time: each piece may come
    in time, and they never end."""
    began_at = time.monotonic()
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError:
        waited_s = time.monotonic() - began_at
        raise deadline_exceeded(timeout_s, waited_s, before=f"{what} read") from None


@asynccontextmanager
async def write_timeout(seconds: float) -> AsyncIterator[None]:
    """Raises AnswerNotTaken if the client does not read what is sent inside in time."""
    async with write_timeout_at(asyncio.get_running_loop().time() + seconds, seconds):
        yield


@asynccontextmanager
async def write_timeout_at(deadline: float, limit_s: float) -> AsyncIterator[None]:
    """As write_timeout, until a time on the loop's clock. The error states `limit_s`."""
    try:
        async with asyncio.timeout_at(deadline):
            yield
    except TimeoutError:
        raise answer_not_taken(limit_s) from None


def answer_not_taken(limit_s: float) -> AnswerNotTaken:
    return AnswerNotTaken(f"the client did not read the answer within {limit_s:g} s", limit=limit_s)


async def cooperatively(items: Iterable[Item]) -> AsyncIterator[Item]:
    """Yields the items, and lets other tasks run every few milliseconds."""
    yield_at = time.perf_counter() + _YIELD_EVERY_S
    with quick_turns():
        for item in items:
            yield item
            if time.perf_counter() > yield_at:
                await asyncio.sleep(0)
                yield_at = time.perf_counter() + _YIELD_EVERY_S


class Pace:
    """Lets bytes pass at a rate, in the order in which they ask. Use it on the event loop."""

    def __init__(self, bytes_per_s: float, *, at_once: int = 0) -> None:
        self._bytes_per_s = bytes_per_s
        self._ahead_s = at_once / bytes_per_s
        self._passed_at = 0.0  # when all that was let pass will have passed at the rate
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()

    async def take(self, num_bytes: int) -> None:
        """Waits until those before them have passed, but for the last `at_once`."""
        loop = asyncio.get_running_loop()
        async with self._turn:
            while (left_s := self._passed_at - self._ahead_s - loop.time()) > 0:
                self._changed.clear()
                with suppress(TimeoutError):
                    # wait_for of Python 3.11 may lose a cancellation that comes with a change.
                    async with asyncio.timeout(left_s):
                        await self._changed.wait()
            self.add(num_bytes)

    def add(self, num_bytes: int) -> None:
        """Counts bytes that pass without asking, or gives back some that did not."""
        now = asyncio.get_running_loop().time()
        self._passed_at = max(self._passed_at, now) + num_bytes / self._bytes_per_s
        self._changed.set()
