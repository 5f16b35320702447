"""Those who wait for room in the queue, on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(eq=False)
class _Place:
    num_tokens: int
    called: asyncio.Event = field(default_factory=asyncio.Event)


class WaitingLine:
    """In order of arrival among those that fit. Who fits passes who does not: callers outside the
    line keep taking room, so that one large text would hold up all behind it. The price is that a
    large text may wait to its deadline while smaller ones keep coming.

    One at a time is called, since what it takes is not there for the next.
    """

    def __init__(self, may_enter: Callable[[int], bool]) -> None:
        self._may_enter = may_enter
        self._places: dict[_Place, None] = {}  # a set in order of arrival
        self._called: _Place | None = None

    def __len__(self) -> int:
        return len(self._places)

    async def wait(self, num_tokens: int) -> None:
        """Until texts of so many tokens may enter. Who does not let go of the loop in between
        finds it so."""
        place = _Place(num_tokens)
        self._places[place] = None
        try:
            while True:
                self.call_next()
                await place.called.wait()
                if self._may_enter(num_tokens):
                    return
                self._take_back(place)  # somebody outside the line was faster
        finally:
            self._take_back(place)
            del self._places[place]
            # Later: only then has who leaves taken its room, or is known not to want it.
            asyncio.get_running_loop().call_soon(self.call_next)

    def call_next(self) -> None:
        """Call the first that fits. To be told of whenever there may be more room."""
        if self._called is not None:
            return
        self._called = next((one for one in self._places if self._may_enter(one.num_tokens)), None)
        if self._called is not None:
            self._called.called.set()

    def _take_back(self, place: _Place) -> None:
        if self._called is place:
            self._called = None
            place.called.clear()
