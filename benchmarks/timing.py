"""Times taken in turns, so that whatever else the machine does falls on everyone alike."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter, sleep

Run = Callable[[], object]
Seconds = tuple[float, ...]

SETTLE_S = 0.05
"""Before each turn: thread pools spin for a while after their work, on the next one's cores."""


@dataclass(frozen=True, kw_only=True)
class Turns:
    repeats: int
    calls: int = 1
    """Calls in each turn, whose median is the turn's time; with several, one more warms up."""
    warm: bool = True
    """Whether a first round goes unrecorded."""


def take_turns(contenders: Mapping[str, Run], turns: Turns) -> dict[str, Seconds]:
    """A B C A B C ...: the seconds of one call, once for each turn."""
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for index in range(turns.repeats + turns.warm):
        for name, run in contenders.items():
            seconds = _turn(run, turns.calls)
            if index >= turns.warm:
                taken[name].append(seconds)
    return {name: tuple(seconds) for name, seconds in taken.items()}


async def seconds_of(answer: Awaitable[object]) -> float:
    """How long it is waited for."""
    started_at = perf_counter()
    await answer
    return perf_counter() - started_at


def ratios(over: Sequence[float], under: Sequence[float]) -> Seconds:
    """Turn by turn: what slowed one of a pair down slowed the other too."""
    return tuple(a / b for a, b in zip(over, under, strict=True))


def _turn(run: Run, calls: int) -> float:
    sleep(SETTLE_S)
    if calls > 1:
        run()
    return median(_seconds(run) for _ in range(calls))


def _seconds(run: Run) -> float:
    started_at = perf_counter()
    run()
    return perf_counter() - started_at
