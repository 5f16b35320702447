"""Streams of requests: answered concurrently, in order, and interrupted when the server stops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeAlias, TypeVar

from engine.errors import EngineUnavailable
from service.fairness import read_timeout

Request = TypeVar("Request")
Response = TypeVar("Response")

Holding: TypeAlias = AbstractAsyncContextManager[object]

MAX_IN_FLIGHT = 64
"""How many requests of one stream are read before their answers are sent."""


class StreamTasks:
    """Tasks that wait for a client and might never end. `interrupt` cancels them all for good."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._interrupted = False

    async def run(self, coroutine: Coroutine[Any, Any, None]) -> bool:
        """Runs the coroutine to its end and returns True, or False if it was interrupted."""
        if self._interrupted:
            coroutine.close()
            return False
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        try:
            await asyncio.wait({task})
        finally:
            self._tasks.discard(task)
            task.cancel()  # has an effect only if our caller was cancelled
        if task.cancelled():
            return False
        task.result()
        return True

    def interrupt(self) -> None:
        self._interrupted = True
        for task in self._tasks:
            task.cancel()


async def answer_in_order(
    requests: AsyncIterable[Request],
    *,
    answer: Callable[[Request], Coroutine[Any, Any, Response]],
    write: Callable[[Response], Awaitable[None]],
    stream_tasks: StreamTasks,
    hold: Callable[[Request], Holding | None] = lambda _: None,
    idle_timeout_s: float,
    max_in_flight: int = MAX_IN_FLIGHT,
) -> None:
    """Answers all requests of a stream.

    A request is in flight from when it is read until its answer is written. Nothing is read while
    `max_in_flight` requests are in flight, so a client that does not read its answers soon cannot
    send either. `hold` holds the memory of a request until its answer is computed, and nothing more
    is read before it does; it returns None for a request that needs none.

    Raises BodyTimeout if a client that has all its answers sends nothing for `idle_timeout_s`.
    Raises EngineUnavailable if the server stops, once all requests read by then are answered.
    """
    slots = asyncio.Semaphore(max_in_flight)
    idle = _IdleTimeout(idle_timeout_s)
    answers: asyncio.Queue[asyncio.Task[Response] | None] = asyncio.Queue()

    try:
        async with asyncio.TaskGroup() as tasks:

            async def read() -> None:
                await slots.acquire()
                async with idle.applied():
                    async for request in requests:
                        idle.request_read()
                        holding, is_held = hold(request), asyncio.Event()
                        answering = (
                            answer(request)
                            if holding is None
                            else _held(answer, request, holding, is_held)
                        )
                        try:
                            answers.put_nowait(tasks.create_task(answering))
                        except RuntimeError:  # the stream failed, and the group is closing
                            answering.close()
                            return
                        if holding is not None:
                            await is_held.wait()
                        await slots.acquire()

            reading = tasks.create_task(stream_tasks.run(read()))
            reading.add_done_callback(lambda _: answers.put_nowait(None))
            while (task := await answers.get()) is not None:
                await write(await task)
                idle.answer_written()
                slots.release()
    except ExceptionGroup as failures:
        # The first failure ended the stream and caused the others.
        raise failures.exceptions[0] from None
    if not reading.result():
        raise EngineUnavailable("the server is stopping; all requests it read are answered")


async def _held(
    answer: Callable[[Request], Coroutine[Any, Any, Response]],
    request: Request,
    holding: Holding,
    is_held: asyncio.Event,
) -> Response:
    try:
        async with holding:
            is_held.set()
            return await answer(request)
    finally:
        is_held.set()


class _IdleTimeout:
    """A read timeout that runs only while the client has no answers to wait for."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._in_flight = 0
        self._timeout: asyncio.Timeout | None = None

    @asynccontextmanager
    async def applied(self) -> AsyncIterator[None]:
        try:
            async with read_timeout(self._limit_s) as self._timeout:
                yield
        finally:
            self._timeout = None

    def request_read(self) -> None:
        self._in_flight += 1
        self._reschedule(None)

    def answer_written(self) -> None:
        self._in_flight -= 1
        if not self._in_flight:
            self._reschedule(asyncio.get_running_loop().time() + self._limit_s)

    def _reschedule(self, when: float | None) -> None:
        if self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(when)
