"""How fast work goes just now."""

from __future__ import annotations


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
