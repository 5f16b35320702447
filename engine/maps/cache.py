"""Values kept while they fit a budget of bytes and are still asked for.

What was derived from another value can be made again, and goes first: its source outlasts it.
Sources have half of the budget, so that there is room to work with the last one.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any


@dataclass
class _Entry:
    value: Any
    num_bytes: int
    used_at: float


class ByteCache:
    """Forgets what was not used for `max_idle_s`, and the least recently used when it is full.

    Used from the event loop and from the device thread.
    """

    def __init__(
        self,
        *,
        max_bytes: int,
        max_idle_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.max_bytes = max_bytes
        self._max_idle_s = max_idle_s
        self._clock = clock
        self._lock = threading.Lock()
        self._derived, self._sources = _Shelf(), _Shelf()

    @property
    def num_bytes(self) -> int:
        return self._derived.num_bytes + self._sources.num_bytes

    @property
    def max_derived_bytes(self) -> int:
        """What the sources leave to all that is derived."""
        return self.max_bytes - self._sources.num_bytes

    def __len__(self) -> int:
        return len(self._derived) + len(self._sources)

    def get(self, key: Hashable) -> Any | None:
        """The value kept under this key, if it still is."""
        with self._lock:
            self._forget_idle()
            entry = self._derived.used(key) or self._sources.used(key)
            if entry is None:
                return None
            entry.used_at = self._clock()
            return entry.value

    def put(self, key: Hashable, value: Any, num_bytes: int) -> bool:
        """Keep a derived value at the cost of older ones; False where sources leave no room."""
        with self._lock:
            self._make_place(key)
            if num_bytes > self.max_derived_bytes:
                return False
            self._derived.shrink_to(self.max_derived_bytes - num_bytes)
            self._derived.add(key, _Entry(value, num_bytes, self._clock()))
            return True

    def put_source(self, key: Hashable, value: Any, num_bytes: int) -> bool:
        """Keep a value that cannot be made again, at the cost of derived ones, and of older sources
        beyond half of the budget. Larger than that it is the only source; False if it is larger
        than the whole budget."""
        with self._lock:
            self._make_place(key)
            if num_bytes > self.max_bytes:
                return False
            self._sources.shrink_to(max(self.max_bytes // 2 - num_bytes, 0))
            self._derived.shrink_to(self.max_derived_bytes - num_bytes)
            self._sources.add(key, _Entry(value, num_bytes, self._clock()))
            return True

    def _make_place(self, key: Hashable) -> None:
        for shelf in (self._derived, self._sources):
            shelf.forget(key)
        self._forget_idle()

    def _forget_idle(self) -> None:
        oldest_kept = self._clock() - self._max_idle_s
        for shelf in (self._derived, self._sources):
            shelf.forget_unused_since(oldest_kept)


class _Shelf:
    """Entries in the order of their use."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()  # least recently used first

    def __len__(self) -> int:
        return len(self._entries)

    def used(self, key: Hashable) -> _Entry | None:
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

    def add(self, key: Hashable, entry: _Entry) -> None:
        self._entries[key] = entry
        self.num_bytes += entry.num_bytes

    def forget(self, key: Hashable) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.num_bytes -= entry.num_bytes

    def shrink_to(self, num_bytes: int) -> None:
        while self.num_bytes > num_bytes:
            self.forget(next(iter(self._entries)))

    def forget_unused_since(self, oldest_kept: float) -> None:
        while self._entries:
            key, entry = next(iter(self._entries.items()))
            if entry.used_at >= oldest_kept:
                return
            self.forget(key)
