"""What the device runs next: policy over plain data, with no device, no thread and no clock.

Short texts go first, packed into batches. Three kinds of long work wait behind them: tiled texts,
which run a tile at a time; long texts that cannot be tiled; and calls (diagnoses, benchmarks).

While short and long work both wait, long work is owed a stated share of the device's time, divided
equally among its kinds. A kind gets its next unit as soon as it is owed as much time as its last
unit took. When no short text waits, the kind goes next that has had the least time.

Within a kind, the entry that is due first goes first (see `due_at`). Entries of the same model
join it, in the order in which they are due, as far as a batch has room. So nothing starves.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from engine.scheduling.request import Entry, Unit
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

LEAST_BATCH_TOKENS = 512
"""Smaller batches than this would waste a slow device's time."""

_TOKENS_TO_TIME = 256
"""A batch of fewer tokens says little of the speed."""

_WEIGHT = 0.25
"""Of the last batch in the mean speed."""

FIRST_UNIT_S = 0.1
"""How long a unit is taken to last before its kind has run at all."""


def due_at(entry: Entry) -> float:
    """When the entry would have to start: the order of service.

    It never changes, and later arrivals are due later at some point, so nothing is passed for ever.
    """
    request = entry.request
    due = entry.enqueued_at + PRIORITY_DELAY_S[request.priority]
    due += CALL_DELAY * request.after_s
    if request.is_tiled:
        due += TILED_DELAY * request.seconds
    return due if entry.deadline is None else min(due, entry.deadline - request.seconds)


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


@dataclass(eq=False)
class _LongWork:
    """One kind of long work, and the device's time that it has had and is owed."""

    queue: Queue
    used_s: float = 0.0
    last_unit_s: float = FIRST_UNIT_S
    owed_s: float = 0.0

    @property
    def is_owed_a_unit(self) -> bool:
        return self.owed_s > 0 and self.owed_s >= self.last_unit_s


class Scheduler:
    """Decides what may wait and what runs next. Not thread-safe: its owner holds a lock around
    every use."""

    def __init__(
        self,
        *,
        max_batch_tokens: int,
        max_batch_sequences: int,
        max_batch_s: float = 0.1,
        max_queue_tokens: int,
        max_queue_calls: int = 64,
        max_sweep_bytes: int = 1 << 62,
        long_share: float = 0.25,
    ) -> None:
        self.max_batch_tokens = max_batch_tokens
        self._max_batch_s = max_batch_s
        self.max_queue_tokens = max_queue_tokens
        self.max_queue_calls = max_queue_calls
        self.long_share = long_share
        self._short = BatchQueue(max_tokens=max_batch_tokens, max_sequences=max_batch_sequences)
        self._tiled = TiledQueue(max_bytes=max_sweep_bytes)
        self._long = BatchQueue(max_tokens=max_batch_tokens, max_sequences=1)
        self._calls = BatchQueue(max_tokens=0, max_sequences=1)
        self._queues: tuple[Queue, ...] = (self._short, self._tiled, self._long, self._calls)
        self._long_work = [_LongWork(queue) for queue in (self._tiled, self._long, self._calls)]
        self._short.max_tokens = min(max_batch_tokens, LEAST_BATCH_TOKENS)  # until it is timed
        self._token_s = 0.0  # of a batch's time; 0 while it is not known
        self._num_added = 0
        # The time that the kind of long work that ran last had had by then. A kind that was away
        # starts from there.
        self._clock_s = 0.0

    @property
    def num_waiting(self) -> int:
        """Texts that have not begun."""
        return len(self._short) + len(self._long) + self._tiled.num_waiting

    @property
    def num_waiting_calls(self) -> int:
        return len(self._calls)

    @property
    def waiting_tokens(self) -> int:
        """Tokens of the texts that have not begun."""
        return self._short.tokens + self._long.tokens + self._tiled.waiting_tokens

    @property
    def is_empty(self) -> bool:
        return not any(len(queue) for queue in self._queues)

    def can_add(self, tokens: int) -> bool:
        """Whether there is room for texts of this many tokens. An empty queue takes work of any
        size: otherwise work beyond the limit could never run."""
        return self.waiting_tokens + tokens <= self.max_queue_tokens or not self.num_waiting

    def can_add_call(self) -> bool:
        return self.num_waiting_calls < self.max_queue_calls

    def add(self, entry: Entry) -> None:
        entry.number = self._num_added
        self._num_added += 1
        queue = self._queue_of(entry)
        if not len(queue):
            self._catch_up(queue)
        queue.add(entry)

    def remove(self, entry: Entry) -> bool:
        """Remove an entry that is done or whose caller left; False if it was not here. A tiled
        text is here until it is removed, everything else until its unit is taken."""
        return self._queue_of(entry).remove(entry)

    def has_tiled(self, entry: Entry) -> bool:
        """Whether a tiled text is here, begun or not."""
        return entry in self._tiled

    def remove_all(self) -> list[Entry]:
        """Remove and return everything that is here, in order of arrival."""
        entries = [entry for queue in self._queues for entry in queue]
        for entry in entries:
            self.remove(entry)
        return sorted(entries, key=lambda entry: entry.number)

    def next_unit(self, now: float) -> Unit | None:
        """What runs next; None if nothing waits. Call `record` when the unit has run."""
        while (choice := self._choose(now)) is not None:
            queue, short_waits = choice
            # Callers leave without our owner's lock: those just chosen may have left by now.
            if entries := queue.take(now):
                if queue is self._short:
                    return Unit(entries, interrupts_tiled=self._tiled.has_begun)
                self._clock_s = max(self._clock_s, self._long_work_in(queue).used_s)
                return Unit(entries, delays_short=short_waits)
        return None

    def _time_batch(self, tokens: int, seconds: float) -> None:
        """Make batches so large that they last as long as they may."""
        if tokens < _TOKENS_TO_TIME:
            return
        found = seconds / tokens
        known = self._token_s or found
        self._token_s = known + _WEIGHT * (found - known)
        lasting = int(self._max_batch_s / self._token_s) if self._token_s else self.max_batch_tokens
        self._short.max_tokens = min(self.max_batch_tokens, max(LEAST_BATCH_TOKENS, lasting))

    def record(self, unit: Unit, seconds: float) -> None:
        """Count the time that a unit took on the device."""
        queue = self._queue_of(unit.entries[0])
        if queue is self._short:
            self._time_batch(sum(entry.request.tokens for entry in unit.entries), seconds)
            self._owe(seconds * self.long_share / (1 - self.long_share))
            return
        kind = self._long_work_in(queue)
        kind.used_s += seconds
        kind.last_unit_s = seconds
        # Time that nobody else wanted pays what is owed, but is not held against a kind later.
        owed_s = kind.owed_s - seconds
        kind.owed_s = owed_s if unit.delays_short else max(owed_s, 0.0)

    def _choose(self, now: float) -> tuple[Queue, bool] | None:
        """The queue that has the next unit, and whether short texts wait."""
        short_waits = self._short.has_live(now)
        ready = [kind for kind in self._long_work if kind.queue.has_live(now)]
        if short_waits:
            ready = [kind for kind in ready if kind.is_owed_a_unit]
        if ready:
            # In a tie, the kind listed first goes.
            return min(ready, key=lambda kind: kind.used_s).queue, short_waits
        return (self._short, True) if short_waits else None

    def _owe(self, seconds: float) -> None:
        """Owe this time to the kinds that wait, in equal parts. The others lose what they were
        owed."""
        waiting = [kind for kind in self._long_work if len(kind.queue)]
        for kind in self._long_work:
            kind.owed_s = kind.owed_s + seconds / len(waiting) if kind in waiting else 0.0

    def _queue_of(self, entry: Entry) -> Queue:
        if entry.request.is_tiled:
            return self._tiled
        if entry.request.is_call:
            return self._calls
        return self._short if entry.request.tokens <= self.max_batch_tokens else self._long

    def _long_work_in(self, queue: Queue) -> _LongWork:
        return next(kind for kind in self._long_work if kind.queue is queue)

    def _catch_up(self, queue: Queue) -> None:
        """A kind that was away has no claim to the time that it did not ask for, whether or not
        another kind waits just then."""
        if queue is not self._short:
            kind = self._long_work_in(queue)
            kind.used_s = max(kind.used_s, self._clock_s)
