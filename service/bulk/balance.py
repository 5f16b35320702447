"""Parts of a corpus that cost about the same, and the order in which workers take them.

Cost is in tokens, not in rows: one book takes as long as ten thousand notes. Tokens are estimated,
because counting them would make the process that reads the corpus a tokenizer for all workers.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")

_BYTES_PER_TOKEN = 4
_TOKENS_PER_TEXT = 16


def estimated_cost(text: str) -> int:
    """About the tokens of a text, and what a text costs besides them, in tokens too.

    Bytes of UTF-8 estimate tokens better than characters: a Chinese character is three bytes and
    about one token.
    """
    return _TOKENS_PER_TEXT + len(text.encode("utf-8", "surrogatepass")) // _BYTES_PER_TOKEN


def cut(
    items: Iterable[Item], cost: Callable[[Item], int], *, max_cost: int, max_items: int
) -> Iterator[list[Item]]:
    """Consecutive items in parts that cost at most `max_cost` together.

    Where a part ends depends on the items alone. An item that costs more is a part by itself, so
    that other workers take what stands around it.
    """
    part: list[Item] = []
    total = 0
    for item in items:
        added = cost(item)
        if part and (total + added > max_cost or len(part) == max_items):
            yield part
            part, total = [], 0
        part.append(item)
        total += added
    if part:
        yield part


class LargestFirst(Generic[Item]):
    """Items that were read ahead. The one that costs most is taken first; among equals, the one
    that was added first."""

    def __init__(self, cost: Callable[[Item], int], *, max_items: int, max_cost: int) -> None:
        self.cost = 0
        self._cost_of = cost
        self._max_items = max_items
        self._max_cost = max_cost
        self._num_added = 0
        self._waiting: list[tuple[int, int, Item]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_full(self) -> bool:
        return len(self._waiting) >= self._max_items or self.cost >= self._max_cost

    def add(self, item: Item) -> None:
        price = self._cost_of(item)
        heapq.heappush(self._waiting, (-price, self._num_added, item))
        self._num_added += 1
        self.cost += price

    def take(self) -> Item:
        negative, _, item = heapq.heappop(self._waiting)
        self.cost += negative
        return item


def largest_first(
    items: Iterable[Item], cost: Callable[[Item], int], *, max_items: int, max_cost: int
) -> Iterator[Item]:
    """The items, always the one that costs most of those read ahead; among equals, the earlier.

    A book that starts last keeps one worker busy while the others have nothing left. Reads ahead
    until `max_items` items, or items that cost `max_cost` together, are waiting.
    """
    waiting = LargestFirst(cost, max_items=max_items, max_cost=max_cost)
    for item in items:
        waiting.add(item)
        while waiting and waiting.is_full:
            yield waiting.take()
    while waiting:
        yield waiting.take()
