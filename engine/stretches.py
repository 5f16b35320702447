"""When the device worked on a long text: a few stretches of time, however many tiles."""

from __future__ import annotations

from typing import NamedTuple

MOST = 64
"""Stretches of one text, so that what is told of a million tokens stays as small as of a few."""


class Stretch(NamedTuple):
    """Some tiles, one after the other, with or without other work between them."""

    began_at: float  # by time.monotonic()
    ended_at: float
    busy_s: float  # of it, the tiles' own time; other work had the rest
    tiles: int

    def joined_with(self, later: Stretch) -> Stretch:
        return Stretch(
            self.began_at,
            later.ended_at,
            self.busy_s + later.busy_s,
            self.tiles + later.tiles,
        )


class Stretches:
    """All tiles so far, in stretches of one tile, of two once these are too many, of four ..."""

    def __init__(self) -> None:
        self._stretches: list[Stretch] = []
        self._tiles_each = 1

    @property
    def busy_s(self) -> float:
        return sum(stretch.busy_s for stretch in self._stretches)

    def add_tile(self, began_at: float, seconds: float) -> None:
        tile = Stretch(began_at, began_at + seconds, seconds, tiles=1)
        if self._stretches and self._stretches[-1].tiles < self._tiles_each:
            self._stretches[-1] = self._stretches[-1].joined_with(tile)
            return
        if len(self._stretches) == MOST:
            self._join_pairs()
        self._stretches.append(tile)

    def as_tuple(self) -> tuple[Stretch, ...]:
        return tuple(self._stretches)

    def _join_pairs(self) -> None:
        pairs = zip(self._stretches[::2], self._stretches[1::2], strict=True)
        self._stretches = [first.joined_with(second) for first, second in pairs]
        self._tiles_each *= 2
