"""Values that can be made again, kept while they fit a budget of bytes and are still asked for."""

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
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()  # least recently used first
        self._num_bytes = 0

    @property
    def num_bytes(self) -> int:
        return self._num_bytes

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable) -> Any | None:
        """The value kept under this key, if it still is."""
        with self._lock:
            self._forget_idle()
            entry = self._entries.get(key)
            if entry is None:
                return None
            entry.used_at = self._clock()
            self._entries.move_to_end(key)
            return entry.value

    def put(self, key: Hashable, value: Any, num_bytes: int) -> bool:
        """Keep a value at the cost of older ones; False if it is larger than the whole budget."""
        with self._lock:
            self._forget(key)
            self._forget_idle()
            if num_bytes > self.max_bytes:
                return False
            while self._num_bytes + num_bytes > self.max_bytes:
                self._forget(next(iter(self._entries)))
            self._entries[key] = _Entry(value, num_bytes, self._clock())
            self._num_bytes += num_bytes
            return True

    def _forget_idle(self) -> None:
        oldest_kept = self._clock() - self._max_idle_s
        while self._entries:
            key, entry = next(iter(self._entries.items()))
            if entry.used_at >= oldest_kept:
                return
            self._forget(key)

    def _forget(self, key: Hashable) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._num_bytes -= entry.num_bytes
