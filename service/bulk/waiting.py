"""The rows that no worker has, and how much of them a worker is given."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from operator import attrgetter

from service.bulk.balance import LargestFirst
from service.bulk.parts import PART_TOKENS
from service.bulk.pieces import Stretch

_AHEAD_OF_EACH = 4
_MAX_AHEAD = 64
_LEAST_TOKENS = 3_000


class WaitingStretches:
    """Stretches, the largest of those read ahead first.

    When all are read, takers are given less and less at a time, so that none of them works much
    longer than the others at the end.
    """

    def __init__(self, stretches: Iterable[Stretch], *, num_takers: int) -> None:
        self._source = iter(stretches)
        self._num_takers = num_takers
        max_ahead = min(_AHEAD_OF_EACH * num_takers, _MAX_AHEAD)
        self._waiting = LargestFirst[Stretch](
            attrgetter("cost"), max_items=max_ahead, max_cost=max_ahead * PART_TOKENS
        )
        self._is_read = False
        self._num_taken = 0
        self._changed = asyncio.Condition()

    async def take(self) -> Stretch | None:
        """What goes next; None when all are done. Waits while some that are taken may come back."""
        async with self._changed:
            if not self._is_read:
                await asyncio.to_thread(self._read_ahead)
            while not self._waiting and self._num_taken:
                await self._changed.wait()
            if not self._waiting:
                return None
            self._num_taken += 1
            stretch = self._waiting.take()
            if self._is_read:
                remaining = self._waiting.cost + stretch.cost
                stretch, rest = stretch.cut(max(_LEAST_TOKENS, remaining // (2 * self._num_takers)))
                if rest is not None:
                    self._waiting.add(rest)
            return stretch

    async def finish(self, back: Stretch | None = None) -> None:
        """One that was taken is done, but for the rows that come back."""
        async with self._changed:
            self._num_taken -= 1
            if back is not None:
                self._waiting.add(back)
            self._changed.notify_all()

    def _read_ahead(self) -> None:
        while not self._waiting.is_full:
            for stretch in self._source:
                self._waiting.add(stretch)
                break
            else:
                self._is_read = True
                return
