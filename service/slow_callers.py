"""Callers who neither speak nor listen: what they hold is taken back in time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

from service.errors import AnswerNotTaken, BodyTimeout

Message = TypeVar("Message")


async def arriving(messages: AsyncIterable[Message], within_s: float) -> AsyncIterator[Message]:
    """The messages, each of which must come in time once it is waited for. Raises BodyTimeout."""
    waiting = aiter(messages)
    while True:
        try:
            async with speaks_within(within_s):
                message = await anext(waiting)
        except StopAsyncIteration:
            return
        yield message


@asynccontextmanager
async def speaks_within(seconds: float) -> AsyncIterator[asyncio.Timeout]:
    """Raises BodyTimeout when the time is over, which whoever holds the timeout may move."""
    try:
        async with asyncio.timeout(seconds) as silence:
            yield silence
    except TimeoutError:
        raise BodyTimeout(
            f"nothing more of the request arrived in {seconds:g} s", limit=seconds
        ) from None


@asynccontextmanager
async def takes_by(give_up_at: float, limit_s: float) -> AsyncIterator[None]:
    """Raises AnswerNotTaken if what is sent inside is not taken by then, on the loop's clock."""
    try:
        async with asyncio.timeout_at(give_up_at):
            yield
    except TimeoutError:
        raise AnswerNotTaken(
            f"the caller did not take the answer within {limit_s:g} s", limit=limit_s
        ) from None


@asynccontextmanager
async def takes_within(seconds: float) -> AsyncIterator[None]:
    """Raises AnswerNotTaken if what is sent inside is not taken in so many seconds."""
    async with takes_by(asyncio.get_running_loop().time() + seconds, seconds):
        yield
