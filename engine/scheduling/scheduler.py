"""What the device runs next: policy over plain data, with no device, no thread and no clock.

Short texts go first, packed into batches. Three kinds of long work wait behind them: tiled texts,
which run a tile at a time; long texts that cannot be tiled; and calls (diagnoses, benchmarks).

While short and long work both wait, long work is owed a stated share of the device's time, divided
equally among its kinds. A kind gets its next unit as soon as it is owed as much time as its last
unit took. When no short text waits, the kind goes next that has had the least time.

Within a kind, the entry that is due first goes first (`queues.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.scheduling.queues import BatchQueue, Queue, TiledQueue
from engine.scheduling.request import Entry, Unit
from engine.types import Outstanding

LEAST_BATCH_TOKENS = 512
"""Smaller batches than this would waste a slow device's time."""

_TOKENS_TO_TIME = 256
"""A batch of fewer tokens says little of the speed."""

_WEIGHT = 0.25
"""The weight of the last batch in the mean speed."""

FIRST_UNIT_S = 0.1
"""How long a unit is taken to last before its kind has run at all."""


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

    def outstanding(self, running: Unit | None) -> Outstanding:
        """The tokens of all that is here or runs, and has still to be read."""
        short = self._short.tokens
        long = self._long.tokens + sum(entry.tokens_left for entry in self._tiled)
        # A tiled text stays here while one of its tiles runs.
        if running is not None and not running.is_tile:
            if self._queue_of(running.entries[0]) is self._short:
                short += running.tokens
            else:
                long += max(running.tokens, 1)
        # A call may have no tokens of its own, and takes the device all the same.
        return Outstanding(short, long + sum(max(entry.request.tokens, 1) for entry in self._calls))

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
