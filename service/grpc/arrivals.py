"""Receives the messages of gRPC calls, and bounds the memory and the time that they need together.

gRPC tells the size of a message only when it has arrived, and it arrives only when it is asked for.
A short message is there at once; a large one holds up everybody while it is copied. So connections
that have only sent short messages ask when they like, and the others ask at a bounded rate. Calls
with one message also take turns: few are received at a time. What has arrived shares the budget of
all bodies.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterable, AsyncIterator, Callable
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
)
from functools import partial
from time import perf_counter
from typing import TypeVar

from google.protobuf.message import Message

from engine.scheduling.admission import Reservation
from engine.steps import Steps, advance, finish
from service.body_budget import LARGE_BYTES_PER_S, SHORT_BODY_BYTES, BodyBudget
from service.errors import InvalidField
from service.fairness import Pace
from service.grpc.decoding import Undecodable
from service.grpc.places import Places

MAX_ARRIVING = 8
"""Messages that are received at a time from connections that have only sent short ones, and as many
from all others. Each may grow to the largest that the server accepts."""

T = TypeVar("T")

_AT_ONCE = 2
"""Largest messages that may be asked for at once, before the rate holds."""

_MAX_SENDERS = 4_096

_CANCELLED_WITHIN_S = 0.05
"""When a caller leaves, grpc ends its messages first and cancels the call a moment later."""


class Arrivals:
    """Use it on the event loop. A `sender` is a connection's name."""

    def __init__(self, budget: BodyBudget, max_wait_s: float, max_message_bytes: int) -> None:
        self._budget = budget
        # Who reads a stream gives its next message `max_wait_s`, this wait included. Half of it is
        # left to the caller, who would be blamed for ours otherwise.
        self._max_turn_s = max_wait_s / 2
        self._max_message_bytes = max_message_bytes
        self._senders = _Senders()
        self._pace = Pace(LARGE_BYTES_PER_S, at_once=_AT_ONCE * max_message_bytes)
        refusal = partial(budget.refuse_place, MAX_ARRIVING)
        self._brief_places = Places(MAX_ARRIVING, max_wait_s, refusal)
        self._other_places = Places(MAX_ARRIVING, max_wait_s, refusal)
        self._decoding = asyncio.Lock()

    async def receive(
        self,
        messages: AsyncIterable[bytes],
        held: AsyncExitStack,
        sender: str,
        *,
        unknown_is_brief: bool = False,
    ) -> bytes:
        """The only message of a call. Its memory is counted until `held` closes. A sender that has
        sent nothing yet counts as brief if the messages of this method are short by nature.

        Raises QueueFull if it takes long, by its size or by its sender, while others wait.
        """
        is_brief = self._senders.is_brief(sender, unknown=unknown_is_brief)
        places = self._brief_places if is_brief else self._other_places
        async with self._asking(sender, is_brief) as has_arrived, places.place() as arrival:
            data = await anext(aiter(messages), None)
            has_arrived(data)
            if data is not None and len(data) > SHORT_BODY_BYTES:
                arrival.has_arrived()
                await held.enter_async_context(self._budget.hold(len(data)))
            arrival.ends()
        if data is None:
            await asyncio.sleep(_CANCELLED_WITHIN_S)
            raise InvalidField("the call has no message", code="missing_message")
        return data

    async def receive_each(
        self, messages: AsyncIterable[bytes], sender: str
    ) -> AsyncIterator[bytes]:
        """The messages of a stream."""
        iterator = None
        while True:
            async with self._asking(sender, self._senders.is_brief(sender)) as has_arrived:
                iterator = iterator or aiter(messages)  # grpc warns of unused iterators
                data = await anext(iterator, None)
                has_arrived(data)
            if data is None:
                return
            yield data

    async def decode_in_turn(self, decode: Callable[[bytes], Steps[T]], data: bytes) -> T:
        """Decodes large messages one after the other. Each step holds the event loop for some time,
        and then leaves it to others for as long."""
        if len(data) <= SHORT_BODY_BYTES:
            return finish(decode(data))
        async with self._decoding:
            steps = decode(data)
            while True:
                started_at = perf_counter()
                answer = advance(steps)
                await asyncio.sleep(perf_counter() - started_at)
                if answer is not None:
                    return answer.value

    @asynccontextmanager
    async def _asking(
        self, sender: str, is_brief: bool
    ) -> AsyncIterator[Callable[[bytes | None], None]]:
        """Waits for the call's turn, then yields a function. Call it with the message once that has
        arrived, or with None at the end of a stream. If the caller leaves first, its share of the
        rate is given back."""
        taken = 0 if is_brief else self._max_message_bytes
        if taken:
            await self._wait_for_turn(taken)

        def has_arrived(data: bytes | None) -> None:
            nonlocal taken
            size = 0 if data is None else len(data)
            self._pace.add(size - taken)
            taken = 0
            if data is not None:
                self._senders.note(sender, is_short=size <= SHORT_BODY_BYTES)

        try:
            yield has_arrived
        finally:
            self._pace.add(-taken)

    async def _wait_for_turn(self, num_bytes: int) -> None:
        try:
            async with asyncio.timeout(self._max_turn_s):
                await self._pace.take(num_bytes)
        except TimeoutError:
            raise self._budget.refuse_turn(self._max_turn_s) from None

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


class _Senders:
    """Which of the last connections have sent short messages, and no other."""

    def __init__(self) -> None:
        self._is_brief: OrderedDict[str, bool] = OrderedDict()

    def is_brief(self, sender: str, *, unknown: bool = False) -> bool:
        return self._is_brief.get(sender, unknown)

    def note(self, sender: str, *, is_short: bool) -> None:
        self._is_brief[sender] = is_short and self._is_brief.get(sender, True)
        self._is_brief.move_to_end(sender)
        if len(self._is_brief) > _MAX_SENDERS:
            self._is_brief.popitem(last=False)
