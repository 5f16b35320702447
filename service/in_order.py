"""Runs work on many items side by side, and yields the results in the order of the items."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Final, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_END: Final = object()


async def in_order(
    items: Iterable[Item],
    work: Callable[[Item], Awaitable[Result]],
    *,
    weigh: Callable[[Item], int],
    max_weight: int,
) -> AsyncIterator[tuple[Item, Result]]:
    """Begins items as long as those under way weigh less than `max_weight` together.

    Items are drawn in a thread, since drawing one may read a file. If the work on one fails, or the
    caller leaves, the work on the others is cancelled.
    """
    source = iter(items)
    under_way: deque[tuple[Item, int, asyncio.Task[Result]]] = deque()
    weight = 0
    has_more = True
    try:
        while has_more or under_way:
            if has_more and (weight < max_weight or not under_way):
                item = await asyncio.to_thread(next, source, _END)
                if item is _END:
                    has_more = False
                    continue
                under_way.append((item, weigh(item), asyncio.ensure_future(work(item))))  # type: ignore[arg-type]
                weight += under_way[-1][1]
                continue
            item, weighs, task = under_way[0]
            result = await task
            under_way.popleft()
            weight -= weighs
            yield item, result
    finally:
        for _, _, task in under_way:
            task.cancel()
        await asyncio.gather(*(task for _, _, task in under_way), return_exceptions=True)
