"""How threads take turns with Python's lock: beside long work, the event loop has to wait for it
after each of its calls to the system."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import TypeVar

Result = TypeVar("Result")

_USUAL_TURN_S = sys.getswitchinterval()
_QUICK_TURN_S = _USUAL_TURN_S / 10


class _QuickTurns:
    """Counts who is within: turns are quick until the last has left."""

    def __init__(self) -> None:
        self._num_within = 0
        self._changing = Lock()

    def enter(self) -> None:
        self._count(1)

    def leave(self) -> None:
        self._count(-1)

    def _count(self, change: int) -> None:
        with self._changing:
            self._num_within += change
            sys.setswitchinterval(_QUICK_TURN_S if self._num_within else _USUAL_TURN_S)


_QUICK_TURNS = _QuickTurns()


@contextmanager
def quick_turns() -> Iterator[None]:
    """Surrounds what holds Python's lock for long. Threads take turns with it more often.

    One that runs many short operations of torch waits for the lock after each: beside a thread that
    lists the tokens of a long text, a short text takes many times as long.
    """
    _QUICK_TURNS.enter()
    try:
        yield
    finally:
        _QUICK_TURNS.leave()


_FEW = 128
"""Results that are made on the event loop: in a millisecond or two, a few times what handing them
to a thread takes."""


async def beside_others_if_many(work: Callable[[], Result], count: int) -> Result:
    """Runs what makes this many small results: at once if they are few, otherwise in a thread."""
    return work() if count <= _FEW else await beside_others(work)


async def beside_others(work: Callable[[], Result]) -> Result:
    """Runs Python code that may take a second, in a thread, and lets other tasks run meanwhile."""

    def run() -> Result:
        with quick_turns():
            return work()

    return await asyncio.to_thread(run)
