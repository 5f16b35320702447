"""What starts the ranks other than the first, and starts them again when they end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from engine.ranks.place import RankPlace

_RESTART_S = 2.0
"""The least time between two starts of one rank. It doubles each time that the rank has ended soon:
loading a model again and again would take the cores from those that read."""

_LONGEST_RESTART_S = 64.0


class EndedRank(NamedTuple):
    rank: int
    how: str
    """What follows "the process of rank 1 ended"."""


class RankLauncher(Protocol):
    door_host: str
    """Where the first rank listens for the others; "" on all addresses."""

    def first_place(self) -> RankPlace:
        """The place of this process."""
        ...

    def start(self, first: RankPlace) -> None:
        """Start all other ranks."""
        ...

    def ended(self) -> Iterator[EndedRank]:
        """The ranks that have ended and were not started again."""
        ...

    def restart(self, rank: int, first: RankPlace) -> None:
        """Start a rank that has ended again, unless it has just been started."""
        ...

    def process_ids(self) -> dict[int, int]:
        """Of the ranks that it started on this machine."""
        ...

    def kill(self, rank: int) -> None:
        """End a rank that no longer answers."""
        ...

    def stop(self) -> None:
        """Wait a moment for ranks that were told to end, and kill those that do not. Nothing
        starts after it."""
        ...


class ElsewhereStarted:
    """Ranks that torchrun or another launcher starts, and starts again if it likes."""

    door_host = ""

    def __init__(self, place: RankPlace) -> None:
        self._place = place

    def first_place(self) -> RankPlace:
        return self._place

    def start(self, first: RankPlace) -> None:
        pass

    def ended(self) -> Iterator[EndedRank]:
        return iter(())

    def restart(self, rank: int, first: RankPlace) -> None:
        pass

    def process_ids(self) -> dict[int, int]:
        return {}

    def kill(self, rank: int) -> None:
        pass

    def stop(self) -> None:
        pass


class Restarts:
    """When ranks were started, and whether one may be started again by now."""

    def __init__(self) -> None:
        self._started_at: dict[int, float] = {}
        self._pause_s: dict[int, float] = {}

    def has_started(self, rank: int) -> None:
        self._started_at[rank] = time.monotonic()

    def may_start(self, rank: int) -> bool:
        """True at most once for each start: the next pause depends on how long the rank lived."""
        age_s = time.monotonic() - self._started_at[rank]
        pause_s = self._pause_s.get(rank, _RESTART_S)
        if age_s < pause_s:
            return False
        has_lived = age_s > _LONGEST_RESTART_S
        self._pause_s[rank] = _RESTART_S if has_lived else min(2 * pause_s, _LONGEST_RESTART_S)
        return True
