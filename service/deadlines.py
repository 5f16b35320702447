"""How long a request may take, and how long a stopping server may take to finish its work."""

from __future__ import annotations

import asyncio

from engine.errors import InvalidInput, shown
from engine.scheduling.deadline import Deadline

TIMEOUT_HEADER = "x-request-timeout-ms"
"""The HTTP header in which a caller sends its timeout. Over gRPC it is the call's own deadline."""


def effective_timeout_s(requested_s: float | None, limit_s: float) -> float:
    """Returns the caller's timeout, capped at the server's limit; the limit if there is none."""
    return limit_s if requested_s is None else min(requested_s, limit_s)


def parse_timeout_header(value: str | None) -> float | None:
    """Returns the header's milliseconds as seconds, or None if the header is absent.

    Raises InvalidInput unless the value is a positive whole number.
    """
    if value is None:
        return None
    milliseconds = int(value[:12]) if value.isdecimal() else 0
    if milliseconds == 0:
        raise InvalidInput(
            f"{TIMEOUT_HEADER} must be a positive whole number of milliseconds, "
            f"got {shown(value)!r}",
            code="invalid_timeout",
            param=TIMEOUT_HEADER,
            limit=1,
            actual=value,
        )
    return milliseconds / 1000


class Draining:
    """The shutdown of the server: one deadline shared by all of its parts.

    It is announced first: readiness turns off, and work is still accepted until load balancers have
    noticed. The deadline starts when draining begins. Parts that stop one after the other share it,
    so together they take no longer than each of them may take alone.
    """

    def __init__(self, timeout_s: float) -> None:
        self.deadline = Deadline(timeout_s)
        """When accepted work must be finished. Valid once draining has begun."""
        self.announced = False
        """Whether the server has been asked to stop."""
        self._begun = asyncio.Event()

    @property
    def begun(self) -> bool:
        return self._begun.is_set()

    @property
    def left_s(self) -> float:
        return max(self.deadline.left_s or 0.0, 0.0)

    def announce(self) -> None:
        """Turns readiness off. Work is still accepted."""
        self.announced = True

    def begin(self) -> None:
        """Starts the deadline. Calls after the first have no effect."""
        self.announce()
        if not self.begun:
            self.deadline = Deadline(self.deadline.timeout_s)
            self._begun.set()

    def cut_short(self) -> None:
        """Ends the deadline. Parts that wait for it already do not notice."""
        self.deadline = Deadline(0)

    async def wait(self) -> None:
        """Waits until draining begins."""
        await self._begun.wait()
