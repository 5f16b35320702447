"""What waits for the device, in the order in which it is due.

Entries of the same model join the one that is due first, in the order in which they are due, as far
as a batch has room. So nothing starves.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import TypeAlias

from engine.scheduling.request import Entry
from engine.types import Priority

PRIORITY_DELAY_S: dict[Priority, float] = {"normal": 0.0, "background": 30.0}
"""An entry of this priority lets others pass that arrive at most so much later."""

TILED_DELAY = 1.0
"""A tiled text lets others pass that arrive at most this times its own seconds later. So a shorter
text overtakes a long one, and the long one is passed for a bounded time only."""

CALL_DELAY = 16.0
"""A text lets others pass that arrive at most this times as much later as the earlier texts of its
call take. So a call of thousands of texts does not hold up the next one, also beside others like
it, and nothing is slower for that unless others are there."""


def due_at(entry: Entry) -> float:
    """When the entry would have to start: the order of service.

    It never changes, and later arrivals are due later at some point, so nothing is passed for ever.
    """
    request = entry.request
    due = entry.enqueued_at + PRIORITY_DELAY_S[request.priority]
    due += CALL_DELAY * request.after_s
    if request.is_tiled:
        due += TILED_DELAY * request.seconds
    if entry.deadline is None:
        return due
    # At once, at the earliest: one that cannot meet its deadline has no claim to more.
    return min(due, max(entry.deadline - request.seconds, entry.enqueued_at))


def service_order(entry: Entry) -> tuple[float, int]:
    return (due_at(entry), entry.number)


class DueQueue:
    """Entries in service order. Most come and go at the ends, where that costs next to nothing."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries)

    def add(self, entry: Entry) -> None:
        insort(self._entries, entry, key=service_order)

    def remove(self, entry: Entry) -> bool:
        """Whether the entry was still here."""
        at = bisect_left(self._entries, service_order(entry), key=service_order)
        if at == len(self._entries) or self._entries[at] is not entry:
            return False
        del self._entries[at]
        return True

    def live(self, now: float) -> Iterator[Entry]:
        """The entries whose callers still wait. The others stay until somebody removes them."""
        return (entry for entry in self._entries if not entry.has_departed(now))

    def first_live(self, now: float) -> Entry | None:
        return next(self.live(now), None)


class BatchQueue:
    """Entries for units of several entries, by model, since a unit has only one."""

    def __init__(self, *, max_tokens: int, max_sequences: int) -> None:
        self.tokens = 0
        self.max_tokens = max_tokens
        self._max_sequences = max_sequences
        self._by_model: dict[str, DueQueue] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_model.values()))

    def __iter__(self) -> Iterator[Entry]:
        return (entry for queue in self._by_model.values() for entry in queue)

    def add(self, entry: Entry) -> None:
        self._by_model.setdefault(entry.request.model, DueQueue()).add(entry)
        self.tokens += entry.request.tokens

    def remove(self, entry: Entry) -> bool:
        """Whether the entry was still here."""
        model = entry.request.model
        queue = self._by_model.get(model)
        if queue is None or not queue.remove(entry):
            return False
        self.tokens -= entry.request.tokens
        if not queue:
            del self._by_model[model]
        return True

    def has_live(self, now: float) -> bool:
        return any(queue.first_live(now) for queue in self._by_model.values())

    def take(self, now: float) -> tuple[Entry, ...]:
        """The entry due first and those of its model that fit beside it; () if nobody waits."""
        heads = [head for queue in self._by_model.values() if (head := queue.first_live(now))]
        if not heads:
            return ()
        first = min(heads, key=service_order)
        entries = tuple(self._fitting(self._by_model[first.request.model].live(now)))
        for entry in entries:
            self.remove(entry)
        return entries

    def _fitting(self, entries: Iterator[Entry]) -> Iterator[Entry]:
        """The first entry, whatever its size, and the next ones until one does not fit."""
        room = self.max_tokens
        for position, entry in enumerate(entries):
            tokens = entry.request.tokens
            if position and (position == self._max_sequences or tokens > room):
                return
            room -= tokens
            yield entry


class TiledQueue:
    """Texts that take many units, one tile after the other, and need memory from first to last.

    The text that is due first has the next tile. A text begins only when its memory fits beside
    those that have begun, and no text begins before one that is due earlier. Of the texts that need
    all ranks one is read at a time; the others let those pass that do not.
    """

    def __init__(self, *, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._waiting = DueQueue()
        self._begun = DueQueue()

    def __len__(self) -> int:
        return len(self._waiting) + len(self._begun)

    def __iter__(self) -> Iterator[Entry]:
        yield from self._waiting
        yield from self._begun

    def __contains__(self, entry: Entry) -> bool:
        return any(entry is other for other in self)

    @property
    def num_waiting(self) -> int:
        """Texts that have not begun."""
        return len(self._waiting)

    @property
    def waiting_tokens(self) -> int:
        return sum(entry.request.tokens for entry in self._waiting)

    @property
    def has_begun(self) -> bool:
        """Whether some text has begun."""
        return len(self._begun) > 0

    @property
    def used_bytes(self) -> int:
        """The memory of the texts that have begun."""
        return sum(entry.request.num_bytes for entry in self._begun)

    def add(self, entry: Entry) -> None:
        self._waiting.add(entry)

    def remove(self, entry: Entry) -> bool:
        """Whether the entry was still here, begun or not."""
        return self._waiting.remove(entry) or self._begun.remove(entry)

    def has_live(self, now: float) -> bool:
        """Whether a tile could run now."""
        return self._next(now) is not None

    def take(self, now: float) -> tuple[Entry, ...]:
        """The text that has the next tile. It stays here until it is removed."""
        entry = self._next(now)
        if entry is None:
            return ()
        if self._waiting.remove(entry):
            self._begun.add(entry)
        return (entry,)

    def _next(self, now: float) -> Entry | None:
        begun = self._begun.first_live(now)
        ranks_are_taken = any(entry.request.needs_ranks for entry in self._begun)
        waits = (
            entry
            for entry in self._waiting.live(now)
            if not (ranks_are_taken and entry.request.needs_ranks)
        )
        waiting = next(waits, None)
        if waiting is not None and not self._fits(waiting):
            waiting = None
        candidates = (entry for entry in (begun, waiting) if entry is not None)
        return min(candidates, key=service_order, default=None)

    def _fits(self, entry: Entry) -> bool:
        """A text that is alone may try whatever its size."""
        return not self._begun or self.used_bytes + entry.request.num_bytes <= self.max_bytes


Queue: TypeAlias = BatchQueue | TiledQueue
