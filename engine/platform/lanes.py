"""Two threads side by side, each with half of the threads that torch uses.

Torch splits every operation over its threads, and all of them wait for the last. With short texts
they wait as often as every hundred microseconds, and longer on a busy machine. What does not depend
on each other need not wait: half of it on each lane.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache
from threading import Barrier
from typing import TypeVar

import torch

ItemT = TypeVar("ItemT")
T = TypeVar("T")

_NUM_LANES = 2


class Lanes:
    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads
        """How many torch uses. Each lane has half of them."""
        self._pool = ThreadPoolExecutor(_NUM_LANES, thread_name_prefix="lln-lane")
        self._begin()

    def submit(self, run: Callable[[ItemT], T], item: ItemT) -> Future[T]:
        """To the lane that is free first."""
        inference = torch.is_inference_mode_enabled()  # a setting of the current thread alone

        def run_on_lane() -> T:
            with torch.inference_mode(inference):
                return run(item)

        return self._pool.submit(run_on_lane)

    def map(self, run: Callable[[ItemT], T], items: Sequence[ItemT]) -> list[T]:
        """The results in the order of the items."""
        found = [self.submit(run, item) for item in items]
        wait(found)  # also after an error, so that no lane works for nobody
        return [future.result() for future in found]

    def _begin(self) -> None:
        """Start both lanes and tell torch how many threads each may use.

        torch takes such a number for the current thread and for all threads that start later. So it
        is set back at the end.
        """
        both = Barrier(_NUM_LANES)

        def begin(_: int) -> None:
            both.wait()
            torch.get_num_threads()  # the first call in a thread would undo an earlier setting
            torch.set_num_threads(self.num_threads // _NUM_LANES)

        list(self._pool.map(begin, range(_NUM_LANES)))
        torch.set_num_threads(self.num_threads)


@cache
def lanes_of(num_threads: int) -> Lanes | None:
    """The process's lanes for this number of threads, which the caller has set.

    None for an odd number: one thread would have nothing to do.
    """
    return None if num_threads % _NUM_LANES else Lanes(num_threads)
