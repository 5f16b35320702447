"""A stream of requests answered concurrently and in order, with a bound on what is in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from service.grpc.listeners import Listeners
from service.slow_callers import speaks_within

Request = TypeVar("Request")
Response = TypeVar("Response")

MAX_IN_FLIGHT = 64
"""Requests of one stream that are read but whose answers have not been taken yet."""


async def answer_in_order(
    requests: AsyncIterable[Request],
    *,
    answer: Callable[[Request], Coroutine[Any, Any, Response]],
    write: Callable[[Response], Awaitable[None]],
    listeners: Listeners,
    max_in_flight: int,
    max_silence_s: float,
) -> bool:
    """Answers all requests and returns True, or False if the reading was interrupted.

    A request is in flight from its reading until its answer is written. While `max_in_flight`
    are, none is read; as writing waits for a client that does not take its answers, and a client's
    writing waits for us to read, a slow side slows the other one down. A client that waits for
    nothing and says nothing for longer than `max_silence_s` is given up (BodyTimeout).
    """
    slots = asyncio.Semaphore(max_in_flight)
    silence = _Silence(max_silence_s)
    answers: asyncio.Queue[asyncio.Task[Response] | None] = asyncio.Queue()

    try:
        async with asyncio.TaskGroup() as tasks:

            async def read() -> None:
                await slots.acquire()
                async with silence.ends_listening():
                    async for request in requests:
                        silence.broken()
                        answering = answer(request)
                        try:
                            answers.put_nowait(tasks.create_task(answering))
                        except RuntimeError:  # the stream has failed, and is being cleared away
                            answering.close()
                            return
                        await slots.acquire()

            reading = tasks.create_task(listeners.run(read()))
            reading.add_done_callback(lambda _: answers.put_nowait(None))
            while (task := await answers.get()) is not None:
                await write(await task)
                silence.answered()
                slots.release()
    except ExceptionGroup as failures:
        # The first one ended the stream, and the others are what came of that.
        raise failures.exceptions[0] from None
    return reading.result()


class _Silence:
    """How long a client has said nothing while all that it said is answered."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._unanswered = 0
        self._timeout: asyncio.Timeout | None = None

    @asynccontextmanager
    async def ends_listening(self) -> AsyncIterator[None]:
        try:
            async with speaks_within(self._limit_s) as self._timeout:
                yield
        finally:
            self._timeout = None

    def broken(self) -> None:
        self._unanswered += 1
        self._end_at(None)

    def answered(self) -> None:
        self._unanswered -= 1
        if not self._unanswered:
            self._end_at(asyncio.get_running_loop().time() + self._limit_s)

    def _end_at(self, when: float | None) -> None:
        if self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(when)
