"""Works done side by side, each on a thread of its own, as one work that can be paused.

An instrument's operations are many and short. Split over threads one by one, they wait for each
other at every end; heads that know nothing of each other need not.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from time import perf_counter
from typing import TypeVar

import torch

from engine.diagnostics.work import Work

T = TypeVar("T")

SLICE_S = 0.02
"""How long the threads go on before they all meet for a pause."""


def side_by_side(works: Iterator[Work[T]], num_threads: int) -> Work[list[T]]:
    """What the works bring, in their order; so many of them are under way at a time."""
    if num_threads == 1:
        return (yield from _one_by_one(works))
    own_threads = torch.get_num_threads()
    found: dict[int, T] = {}
    waiting = enumerate(works)
    with ThreadPoolExecutor(num_threads) as pool:
        under_way = dict(_next_of(waiting, num_threads))
        while under_way:
            slices = {
                index: pool.submit(_slice_of, work, found, index)
                for index, work in under_way.items()
            }
            wait(slices.values())
            torch.set_num_threads(own_threads)  # what threads yet to be made begin with
            for index in _ended(slices):
                del under_way[index]
            under_way.update(_next_of(waiting, num_threads - len(under_way)))
            yield
    return [found[index] for index in sorted(found)]


def _one_by_one(works: Iterator[Work[T]]) -> Work[list[T]]:
    found: list[T] = []
    for work in works:
        result = yield from work
        found.append(result)
    return found


def _next_of(waiting: Iterator[tuple[int, Work[T]]], count: int) -> Iterator[tuple[int, Work[T]]]:
    for _, one in zip(range(count), waiting, strict=False):
        yield one


@torch.no_grad()  # which holds on the thread that says so only
def _slice_of(work: Work[T], found: dict[int, T], index: int) -> bool:
    """Whether the work has ended."""
    # A thread new to torch takes the process's number at its first question, whenever that is.
    torch.get_num_threads()
    torch.set_num_threads(1)
    slice_ends = perf_counter() + SLICE_S
    while perf_counter() < slice_ends:
        try:
            next(work)
        except StopIteration as end:
            found[index] = end.value
            return True
    return False


def _ended(slices: dict[int, Future[bool]]) -> list[int]:
    return [index for index, future in slices.items() if future.result()]
