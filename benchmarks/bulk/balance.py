"""A simulation of workers that take parts of a skewed corpus, cut by rows or by tokens.

Seconds of a part are those of its texts, by the prices that the engine measures when it starts.
Nothing else here is measured.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

from service.bulk.balance import cut, largest_first
from service.bulk.parts import PART_ROWS, PART_TOKENS

WORKERS = 4
TEXTS = 20_000
SHORT = 200
SEED = 25
BOOK = SHORT * 99  # one text in a hundred has half of the tokens
Price = Callable[[int], float]


def simulate(seconds_of: Price) -> dict[str, Any]:
    """The time of each way to cut, in that of the bound: no worker idle, or the longest text."""
    price = {SHORT: seconds_of(SHORT), BOOK: seconds_of(BOOK)}
    return {
        "workers": WORKERS,
        "texts": TEXTS,
        "simulated": True,
        "seconds_of_a_text": price,
        "cases": {
            order: _case(order, price.__getitem__)
            for order in ("mixed", "books last", "books first")
        },
    }


def _case(order: str, price: Price) -> dict[str, float]:
    texts = _corpus(order)
    bound = max(sum(map(price, texts)) / WORKERS, max(map(price, texts)))
    own = -(-len(texts) // WORKERS)
    by_rows = {
        "rows, a stretch for each worker": _split(texts, own),
        "rows, 512 at a time": _split(texts, PART_ROWS),
    }
    by_tokens = cut(texts, int, max_cost=PART_TOKENS, max_items=PART_ROWS)
    ahead = 4 * WORKERS
    ordered = largest_first(by_tokens, sum, max_items=ahead, max_cost=ahead * PART_TOKENS)
    found = {name: makespan(parts, price) / bound for name, parts in by_rows.items()}
    found["tokens"] = makespan(ordered, price) / bound
    for name in by_rows:
        found[f"gain over {name}"] = found[name] / found["tokens"]
    return {name: round(value, 3) for name, value in found.items()}


def _corpus(order: str) -> list[int]:
    num_books = TEXTS // 100
    texts = [SHORT] * (TEXTS - num_books) + [BOOK] * num_books
    if order == "books first":
        texts.reverse()
    elif order == "mixed":
        random.Random(SEED).shuffle(texts)
    return texts


def makespan(parts: Iterable[Sequence[int]], price: Price, workers: int = WORKERS) -> float:
    """When the last worker ends, if each takes the next part as soon as it has none."""
    free = [0.0] * workers
    for part in parts:
        heapq.heappush(free, heapq.heappop(free) + sum(map(price, part)))
    return max(free)


def _split(texts: Sequence[int], rows: int) -> Iterable[Sequence[int]]:
    source = iter(texts)
    while part := list(islice(source, rows)):
        yield part
