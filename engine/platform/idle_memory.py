"""Gives freed memory back to the system while there is no work."""

from __future__ import annotations

import sys
from contextlib import suppress

from engine.platform.memory import resident_bytes
from engine.platform.process import trim_heap

_WORTH_A_SEARCH = 64 << 20
"""Growth from which the heap is searched. All threads that need memory wait for the search, the
longer the more there is to give back. Short texts stay below it."""


class IdleMemory:
    """What batches, documents and large answers leave behind.

    Between two batches freed memory is used again. glibc itself gives back only what lies at the
    end of its heap, and the results of an operation lie below what oneDNN keeps for later ones. So
    a server would hold the memory of its largest documents for good.
    """

    def __init__(self) -> None:
        # Unknown: loading needs more than what is loaded, and gives some of it back.
        self._at_rest: int | None = None

    def give_back(self) -> None:
        """Call it when work has ended and no more has come, and now and then after that."""
        with suppress(OSError):  # without a free descriptor: it is tried again later
            held = _resident()
            if self._at_rest is None or held - self._at_rest >= _WORTH_A_SEARCH:
                trim_heap()
                self._at_rest = _resident()
            else:  # others search too, before large work
                self._at_rest = min(self._at_rest, held)


def _resident() -> int:
    """0 where the system does not tell, and where glibc is not in use."""
    return resident_bytes() if sys.platform == "linux" else 0
