"""Places for the uploads that arrive at once. One that trickles in loses its place if another needs
it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from engine.errors import QueueFull
from service.body_budget import TOO_MANY_ARRIVING

MOST_AT_ONCE = 64

PACE_BYTES_PER_S = 32 * 1024
"""A slow line is several times faster."""

_MAY_LAG_S = 5.0
_RETRY_AFTER_S = 5.0


class Arrival:
    """One upload while it arrives."""

    def __init__(self, arrivals: set[Arrival], leaves: asyncio.Timeout) -> None:
        self.num_bytes = 0
        self.must_go = False
        self._arrivals = arrivals
        self._leaves = leaves
        self._began_at = time.monotonic()
        arrivals.add(self)

    @property
    def expected_bytes(self) -> int:
        """What would have arrived by now at the pace."""
        return int((time.monotonic() - self._began_at - _MAY_LAG_S) * PACE_BYTES_PER_S)

    @property
    def lag_bytes(self) -> int:
        return self.expected_bytes - self.num_bytes

    def ends(self) -> None:
        """It has arrived, or never will, and leaves its place to others."""
        self._arrivals.discard(self)

    def go(self) -> None:
        self.ends()
        self.must_go = True
        self._leaves.reschedule(asyncio.get_running_loop().time())


class Arriving:
    """Use it on the event loop."""

    def __init__(self) -> None:
        self._arrivals: set[Arrival] = set()

    @asynccontextmanager
    async def place(self) -> AsyncIterator[Arrival]:
        """Raises QueueFull if there is no place, and if the upload falls behind while others need
        its place."""
        if len(self._arrivals) >= MOST_AT_ONCE:
            self._send_slowest_away()
        try:
            async with asyncio.timeout(None) as leaves:
                arrival = Arrival(self._arrivals, leaves)
                try:
                    yield arrival
                finally:
                    arrival.ends()
        except TimeoutError:
            if not arrival.must_go:
                raise
            raise _fell_behind(arrival) from None

    def _send_slowest_away(self) -> None:
        slowest = max(self._arrivals, key=lambda arrival: arrival.lag_bytes)
        if slowest.lag_bytes <= 0:
            raise QueueFull(
                f"{MOST_AT_ONCE} uploads are arriving, which is the limit",
                code=TOO_MANY_ARRIVING,
                limit=MOST_AT_ONCE,
                actual=MOST_AT_ONCE + 1,
                retry_after_s=_RETRY_AFTER_S,
            )
        slowest.go()


def _fell_behind(arrival: Arrival) -> QueueFull:
    expected = arrival.expected_bytes
    return QueueFull(
        f"{MOST_AT_ONCE} uploads are arriving, which is the limit, and others wait; "
        f"{arrival.num_bytes} bytes of this one have arrived, and {expected} would have by now at "
        f"{PACE_BYTES_PER_S} bytes a second",
        code=TOO_MANY_ARRIVING,
        limit=expected,
        actual=arrival.num_bytes,
        retry_after_s=_RETRY_AFTER_S,
    )
