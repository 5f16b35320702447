"""A cache with a limit in bytes and in idle time, for documents and what is computed from them.

Sources, such as the tokens of a document, cannot be computed again; derived values can, and are
evicted first. Sources have half of the budget, which leaves the rest for work with the last one.
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
    """Evicts values not used for `max_idle_s`, and the least recently used ones when it is full.

    Safe to use from the event loop and the device thread.
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
        self._derived, self._sources = _LruEntries(), _LruEntries()

    @property
    def num_bytes(self) -> int:
        return self._derived.num_bytes + self._sources.num_bytes

    @property
    def max_derived_bytes(self) -> int:
        """What the sources leave for derived values."""
        return self.max_bytes - self._sources.num_bytes

    def __len__(self) -> int:
        return len(self._derived) + len(self._sources)

    def get(self, key: Hashable) -> Any | None:
        """The value under this key, or None."""
        with self._lock:
            self._evict_idle()
            entry = self._derived.use(key) or self._sources.use(key)
            if entry is None:
                return None
            entry.used_at = self._clock()
            return entry.value

    def put(self, key: Hashable, value: Any, num_bytes: int) -> bool:
        """Store a derived value, evicting older ones; False if sources leave too little room."""
        with self._lock:
            self._make_room(key)
            if num_bytes > self.max_derived_bytes:
                return False
            self._derived.shrink_to(self.max_derived_bytes - num_bytes)
            self._derived.add(key, _Entry(value, num_bytes, self._clock()))
            return True

    def put_beside(self, key: Hashable, value: Any, num_bytes: int) -> bool:
        """Store a derived value, unless another one would have to go for it; False then."""
        with self._lock:
            self._make_room(key)
            if self._derived.num_bytes + num_bytes > self.max_derived_bytes:
                return False
            self._derived.add(key, _Entry(value, num_bytes, self._clock()))
            return True

    def put_source(self, key: Hashable, value: Any, num_bytes: int) -> bool:
        """Store a source, evicting derived values, and older sources beyond half of the budget. A
        source larger than that is the only one; False if it is larger than the whole budget."""
        with self._lock:
            self._make_room(key)
            if num_bytes > self.max_bytes:
                return False
            self._sources.shrink_to(max(self.max_bytes // 2 - num_bytes, 0))
            self._derived.shrink_to(self.max_derived_bytes - num_bytes)
            self._sources.add(key, _Entry(value, num_bytes, self._clock()))
            return True

    def _make_room(self, key: Hashable) -> None:
        for entries in (self._derived, self._sources):
            entries.evict(key)
        self._evict_idle()

    def _evict_idle(self) -> None:
        oldest = self._clock() - self._max_idle_s
        for entries in (self._derived, self._sources):
            entries.evict_unused_since(oldest)


class _LruEntries:
    """Entries in the order of their use."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()  # least recently used first

    def __len__(self) -> int:
        return len(self._entries)

    def use(self, key: Hashable) -> _Entry | None:
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

    def add(self, key: Hashable, entry: _Entry) -> None:
        self._entries[key] = entry
        self.num_bytes += entry.num_bytes

    def evict(self, key: Hashable) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.num_bytes -= entry.num_bytes

    def shrink_to(self, num_bytes: int) -> None:
        while self.num_bytes > num_bytes:
            self.evict(next(iter(self._entries)))

    def evict_unused_since(self, oldest: float) -> None:
        while self._entries:
            key, entry = next(iter(self._entries.items()))
            if entry.used_at >= oldest:
                return
            self.evict(key)
