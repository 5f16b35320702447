"""Calls in processes of their own, so that one that hangs or dies takes no other with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from threading import local

Call = Callable[[], bool]


def run_apart(calls: Sequence[Call], workers: int) -> list[bool | None]:
    """What each call answers, None where its process has died; `workers` at a time.

    A process takes one call after the other, since starting it takes longer than most calls. After
    a failed one there is another: an illegal address fails everything that follows in its process.
    """
    lane = local()
    opened: list[ProcessPoolExecutor] = []

    def answer(call: Call) -> bool | None:
        if not hasattr(lane, "process"):
            lane.process = ProcessPoolExecutor(1, get_context("spawn"))
            opened.append(lane.process)
        try:
            answered: bool = lane.process.submit(call).result()
        except BrokenProcessPool:
            del lane.process  # the lane's next call gets another
            return None
        if not answered:
            lane.process.shutdown(wait=False)
            del lane.process
        return answered

    try:
        with ThreadPoolExecutor(workers) as lanes:
            return list(lanes.map(answer, calls))
    finally:
        for process in opened:
            process.shutdown()
