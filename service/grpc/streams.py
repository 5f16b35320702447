"""A stream of requests answered concurrently and in order, with a bound on what is in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from service.grpc.listeners import Listeners

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
) -> bool:
    """Answers all requests and returns True, or False if the reading was interrupted.

    A request is in flight from its reading until its answer is written. While `max_in_flight`
    are, none is read; as writing waits for a client that does not take its answers, and a client's
    writing waits for us to read, a slow side slows the other one down.
    """
    slots = asyncio.Semaphore(max_in_flight)
    answers: asyncio.Queue[asyncio.Task[Response] | None] = asyncio.Queue()

    try:
        async with asyncio.TaskGroup() as tasks:

            async def read() -> None:
                await slots.acquire()
                async for request in requests:
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
                slots.release()
    except ExceptionGroup as failures:
        # The first one ended the stream, and the others are what came of that.
        raise failures.exceptions[0] from None
    return reading.result()
