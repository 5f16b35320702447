"""A bound on the memory of all requests' bodies together, messages over gRPC included.

A body counts from when it is read until its request is answered: the text or the token ids that it
carries live as long. Short bodies are not counted, and never wait: the limit on open requests
bounds them. The others share a budget in three lanes, so that none of them waits for a kind that
takes longer than its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager

from engine.errors import QueueFull
from engine.scheduling.admission import MemoryBudget, Reservation
from engine.scheduling.observer import EngineObserver
from service.fairness import Pace

SHORT_BODY_BYTES = 65_536
"""Bodies up to this size are not counted. It is also what the HTTP server reads ahead."""

LARGE_BODY_BYTES = 1_000_000
"""Bodies from this size on have a lane of their own."""

FULL = "too_many_body_bytes"

TOO_MANY_ARRIVING = "too_many_arriving"

LARGE_BYTES_PER_S = 100_000_000
"""Large bodies over HTTP are read at most so fast together, after their first megabyte, and so are
messages over gRPC. The event loop copies every byte a few times: without a bound, a fast network
could keep it busy with these alone. No device embeds as fast."""

_RETRY_AFTER_S = 5.0


class _Lane:
    """The memory of one kind of bodies, and how many wait for it."""

    def __init__(self, max_bytes: int) -> None:
        self.memory = MemoryBudget(max_bytes)
        self.num_waiting = 0

    @contextmanager
    def waits(self) -> Iterator[None]:
        self.num_waiting += 1
        try:
            yield
        finally:
            self.num_waiting -= 1


class BodyBudget:
    """Half of the budget is for large bodies, a quarter for those between short and large, and a
    quarter for texts that are read while they arrive."""

    def __init__(
        self,
        max_bytes: int,
        max_wait_s: float,
        observer: EngineObserver,
        *,
        max_waiting: int = 256,
    ) -> None:
        """At most `max_waiting` bodies of a lane wait. A body that waits is not read, so the server
        cannot notice that its caller has gone. Such requests would use up the limit on open
        requests, which short ones need too."""
        self.max_bytes = max_bytes
        self._max_wait_s = max_wait_s
        self._max_waiting = max_waiting
        self._observer = observer
        self._large = _Lane(max_bytes // 2)
        self._medium = _Lane(max_bytes // 4)
        self._streamed = MemoryBudget(max_bytes // 4)
        self._pace = Pace(LARGE_BYTES_PER_S)

    @property
    def held_bytes(self) -> int:
        lanes = (self._large.memory, self._medium.memory, self._streamed)
        return sum(memory.reserved for memory in lanes)

    @asynccontextmanager
    async def hold(self, num_bytes: int) -> AsyncIterator[Reservation]:
        """Holds the memory of a body while the context is open. Bodies of a lane wait in order of
        arrival. Raises QueueFull if too many wait, or if there is no room in time."""
        lane = self._lane(num_bytes)
        if lane.num_waiting >= self._max_waiting:
            raise self._too_many_waiting()
        async with AsyncExitStack() as stack:
            try:
                with lane.waits():
                    async with asyncio.timeout(self._max_wait_s):
                        memory = lane.memory.reserve(num_bytes)
                        reservation = await stack.enter_async_context(memory)
            except TimeoutError:
                raise self._full(lane.memory, num_bytes) from None
            yield reservation

    def is_wanted(self, num_bytes: int) -> bool:
        """Whether others wait for the room of bodies of about this size."""
        return self._lane(num_bytes).num_waiting > 0

    async def pace(self, num_bytes: int) -> None:
        """Waits until another piece of a large body may be read after one of this many bytes."""
        await self._pace.take(num_bytes)

    @contextmanager
    def hold_pieces(self) -> Iterator[Callable[[int], None]]:
        """Yields a function to call with the size of each piece of a text that is read while it
        arrives. It raises QueueFull when such texts hold too much together."""
        held = Reservation(self._streamed, 0)

        def count(num_bytes: int) -> None:
            if not held.grow(num_bytes):
                raise self._full(self._streamed, num_bytes)

        try:
            yield count
        finally:
            held.resize(0)

    def refuse_place(self, limit: int) -> QueueFull:
        """The error of a message whose place others wait for."""
        return self._refusal(
            TOO_MANY_ARRIVING,
            f"{limit} messages are arriving or wait for room, which is the limit; others wait "
            "behind them, and this one took long, by its size or by its sender",
            limit=limit,
            actual=limit + 1,
        )

    def refuse_pace(self, num_bytes: int, expected_bytes: int, max_wait_s: float) -> QueueFull:
        """The error of a body that falls behind while others wait for its room."""
        return self._refusal(
            TOO_MANY_ARRIVING,
            f"others wait for the room of this body, and {num_bytes} bytes of it have arrived; to "
            f"be complete within {max_wait_s:g} s, it would have {expected_bytes} by now",
            limit=expected_bytes,
            actual=num_bytes,
        )

    def refuse_turn(self, limit_s: float) -> QueueFull:
        """The error of a message that could not be asked for at the rate."""
        return self._refusal(
            TOO_MANY_ARRIVING,
            "messages from connections that are new or have sent large ones arrive at most at "
            f"{LARGE_BYTES_PER_S} bytes a second, and this one waited {limit_s:g} s for its turn",
            limit=limit_s,
            actual=limit_s,
        )

    def _lane(self, num_bytes: int) -> _Lane:
        return self._large if num_bytes >= LARGE_BODY_BYTES else self._medium

    def _too_many_waiting(self) -> QueueFull:
        return self._refusal(
            FULL,
            f"{self._max_waiting} bodies of about this size wait for memory, which is the limit",
            limit=self._max_waiting,
            actual=self._max_waiting + 1,
        )

    def _full(self, memory: MemoryBudget, num_bytes: int) -> QueueFull:
        return self._refusal(
            FULL,
            f"open requests of this kind hold {memory.reserved} bytes, and the limit is "
            f"{memory.max_bytes}; there is no room for {num_bytes} more",
            limit=memory.max_bytes,
            actual=memory.reserved + num_bytes,
        )

    def _refusal(self, code: str, message: str, *, limit: float, actual: float) -> QueueFull:
        self._observer.rejected(reason=code)
        return QueueFull(
            message, code=code, limit=limit, actual=actual, retry_after_s=_RETRY_AFTER_S
        )
