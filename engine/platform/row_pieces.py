"""Row counts at which products agree, and rows cut up and filled up to such counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

_USUAL: Mapping[int, int] = {16: 1, 128: 1, 512: 1, 1024: 6}
"""Rows of a query, of a passage, of a block and of the tiles of batches and documents, by how much
they count."""

_COST_OF_A_PIECE = 48
_COST_OF_FILLING = 0.5
"""In rows that are multiplied: what a product takes beside its rows, and what each row of a piece
takes that is copied to be filled up. Measured for 40 to 383 rows of 1,536 numbers."""

_NONE = range(0)


_STEPS: Final = ((32, 8), (256, 16), (1024, 32))
"""Up to this many rows, counts are multiples of this."""
_LARGEST_STEP = 64


def common_count(num_rows: int) -> int:
    """The next of a few numbers of rows, to which rows are filled up.

    oneDNN makes and keeps a kernel for each number of rows. Making those of one number takes some
    milliseconds, as a short text does, and there are more numbers than it keeps.
    """
    step = next((step for most, step in _STEPS if num_rows <= most), _LARGEST_STEP)
    return -(-num_rows // step) * step


class SteadyCounts(NamedTuple):
    """Numbers of rows at which products give a row the same bits."""

    counts: tuple[int, ...]  # in order
    whole: range = _NONE  # from the least to the largest, if all between agree as well

    @classmethod
    def with_all_between(cls, counts: tuple[int, ...]) -> SteadyCounts:
        return cls(counts, range(counts[0], counts[-1] + 1))


class Piece(NamedTuple):
    start: int
    length: int
    rows: int  # that are multiplied: the piece's own, and others that fill it up

    @property
    def cost(self) -> float:
        filling = 0.0 if self.length == self.rows else _COST_OF_FILLING * self.rows
        return self.rows + _COST_OF_A_PIECE + filling


def cheapest_counts(tried: tuple[int, ...], alike: Iterable[tuple[int, ...]]) -> SteadyCounts:
    """Chooses one of several groups of counts that agree, all of which were tried.

    If all counts from some number on agree, so do those between them, which were not tried.
    """
    options = [
        SteadyCounts.with_all_between(counts)
        if counts == tried[-len(counts) :]
        else SteadyCounts(counts)
        for counts in alike
    ]
    return min(options, key=_usual_cost)


def _usual_cost(steady: SteadyCounts) -> float:
    """What texts and batches of usual sizes cost, relative to what they would cost in one piece."""
    return sum(
        weight
        * sum(piece.cost for piece in pieces(num_rows, steady))
        / Piece(0, num_rows, num_rows).cost
        for num_rows, weight in _USUAL.items()
    )


@lru_cache(maxsize=1024)
def pieces(num_rows: int, steady: SteadyCounts) -> tuple[Piece, ...]:
    """The cheapest way to cut rows up into steady counts. The last piece may be filled up."""
    largest = steady.counts[-1]
    num_full, rest = divmod(num_rows, largest)
    multiplied = [largest] * num_full
    if rest and steady.whole:
        multiplied.append(max(rest, steady.whole.start))
    elif rest:
        multiplied.extend(_plans(steady.counts)[rest][1])
    found, start = [], 0
    for rows in multiplied:
        found.append(Piece(start, min(rows, num_rows - start), rows))
        start += rows
    return tuple(found)


@lru_cache(maxsize=64)
def _plans(counts: tuple[int, ...]) -> Sequence[tuple[float, tuple[int, ...]]]:
    """The cost and the counts of the cheapest cut, for each number of rows up to the largest."""
    plans: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    for num_rows in range(1, counts[-1] + 1):
        options = []
        for count in counts:
            piece = Piece(0, min(count, num_rows), count)
            others_cost, others = plans[num_rows - piece.length]
            options.append((piece.cost + others_cost, count, others))
        cost, count, others = min(options)
        plans.append((cost, tuple(sorted((count, *others), reverse=True))))
    return plans
