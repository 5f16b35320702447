"""Several runs of steps in parallel, each on a thread of its own, as one run that can pause.

An instrument's operations are many and short. Split over threads one by one, they would wait for
each other after every operation; heads that do not depend on each other need not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import islice
from time import perf_counter
from typing import TypeVar

import torch

from engine.steps import Steps

T = TypeVar("T")

SLICE_S = 0.02
"""How long the threads run before all of them meet for a pause."""


def run_parallel(runs: Iterator[Steps[T]], num_threads: int) -> Steps[list[T]]:
    """The results in the order of the runs. So many of them are in progress at a time."""
    found: dict[int, T] = {}
    if num_threads == 1:
        for index, run in enumerate(runs):
            found[index] = yield from run
        return list(found.values())
    own_threads = torch.get_num_threads()
    waiting = enumerate(runs)
    with ThreadPoolExecutor(num_threads) as pool:
        running = dict(islice(waiting, num_threads))
        while running:
            slices = {
                index: pool.submit(_run_slice, run, found, index) for index, run in running.items()
            }
            wait(slices.values())
            torch.set_num_threads(own_threads)  # what new threads begin with
            for index, future in slices.items():
                if future.result():
                    del running[index]
            running.update(islice(waiting, num_threads - len(running)))
            yield
    return [found[index] for index in sorted(found)]


def run_aside(work: Callable[[], T]) -> Steps[T]:
    """One long operation that cannot pause, on a thread of its own, with pauses while it runs.

    It must not be torch's: the number of threads that torch uses is in part a setting of the whole
    process. If the caller leaves, the operation runs to its end and its result is dropped.
    """
    pool = ThreadPoolExecutor(1)
    try:
        running = pool.submit(work)
        while not running.done():
            wait([running], timeout=SLICE_S)
            yield
        return running.result()
    finally:
        pool.shutdown(wait=False)


@torch.no_grad()  # a setting of the current thread alone
def _run_slice(run: Steps[T], found: dict[int, T], index: int) -> bool:
    """Whether the run has ended."""
    # A thread's first question for the number of threads sets it to the process's: ask before.
    torch.get_num_threads()
    torch.set_num_threads(1)
    slice_ends = perf_counter() + SLICE_S
    while perf_counter() < slice_ends:
        try:
            next(run)
        except StopIteration as end:
            found[index] = end.value
            return True
    return False
