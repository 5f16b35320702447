"""How fast work goes just now."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

_FORGOTTEN_BY_HALF_S = 30.0


class Throughput:
    """Work a second, over about the last ten units."""

    def __init__(self) -> None:
        self._work = 0.0
        self._seconds = 0.0

    def add(self, work: float, seconds: float) -> None:
        self._work = 0.9 * self._work + work
        self._seconds = 0.9 * self._seconds + seconds

    def seconds_for(self, work: float) -> float:
        """How long so much work takes; one second while nothing has been measured."""
        return work * self._seconds / self._work if self._work else 1.0


class Pace:
    """How many times longer than priced work takes just now.

    What nothing confirms is forgotten by and by: if a slow spell made all work seem too long to be
    let in, nothing would run that could show that it is over.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._measured = Throughput()
        self._measured.add(1.0, 1.0)
        self._measured_at = clock()

    def add(self, priced_s: float, took_s: float) -> None:
        self._measured.add(priced_s, took_s)
        self._measured_at = self._clock()

    @property
    def factor(self) -> float:
        age_s = self._clock() - self._measured_at
        weight = math.pow(0.5, age_s / _FORGOTTEN_BY_HALF_S)
        return 1.0 + weight * (self._measured.seconds_for(1.0) - 1.0)
