"""One measured figure with its target and raw times, and how those times are taken.

Contenders are timed in turns, A B C A B C, so that other load on the machine slows all of them.
`Plan` says how thoroughly to measure.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter, sleep
from typing import Literal

Run = Callable[[], object]
Seconds = tuple[float, ...]

SETTLE_S = 0.05
"""Pause before each turn: thread pools spin for a while after their work, on shared cores."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    quick: bool = False
    """One turn of everything, and nothing that takes minutes."""
    repeats: int | None = None
    """Turns, in place of each suite's own number."""
    minutes: float = 30
    """How long the soak takes."""

    def turns(self, usual: int) -> int:
        return self.repeats or (1 if self.quick else usual)


@dataclass(frozen=True)
class Target:
    bound: Literal[">=", "<=", ">"]
    limit: float

    def is_met_by(self, value: float) -> bool:
        match self.bound:
            case ">=":
                return value >= self.limit
            case "<=":
                return value <= self.limit
            case ">":
                return value > self.limit

    def __str__(self) -> str:
        return f"{self.bound} {self.limit:g}"


@dataclass(frozen=True, kw_only=True)
class Row:
    case: str
    measure: str
    value: float
    target: Target | None = None
    seconds: Mapping[str, Seconds]
    """Every turn of each contender that this figure compares."""
    spread: tuple[float, float] | None = None
    """The smallest and the largest value of single turns."""
    note: str = ""
    """Further observations: where to look if the target is missed."""

    @property
    def is_met(self) -> bool | None:
        return None if self.target is None else self.target.is_met_by(self.value)

    @property
    def verdict(self) -> str:
        """The value and its target in words."""
        found = f"{self.case}: {self.measure}: {self.value:.4g}, wanted {self.target}"
        return f"{found} ({self.note})" if self.note else found


def least_row(
    values: Sequence[float], *, case: str, measure: str, target: Target | None = None
) -> Row:
    """The smallest of several values that are not times."""
    spread = (float(min(values)), float(max(values)))
    return Row(
        case=case, measure=measure, value=spread[0], target=target, seconds={}, spread=spread
    )


def ratio_row(
    taken: Mapping[str, Seconds],
    over: str,
    under: str,
    *,
    case: str,
    measure: str,
    target: Target | None = None,
) -> Row:
    """Time of one over time of the other, turn by turn, and the median of the turns.

    What slows one of a pair down in a turn slows the other too.
    """
    by_turn = tuple(a / b for a, b in zip(taken[over], taken[under], strict=True))
    return Row(
        case=case,
        measure=measure,
        value=median(by_turn),
        target=target,
        seconds={name: taken[name] for name in (over, under)},
        spread=(min(by_turn), max(by_turn)),
    )


@dataclass(frozen=True, kw_only=True)
class Turns:
    repeats: int
    calls: int = 1
    """Calls in each turn. Their median is the turn's time; with several, one more warms up."""
    warm: bool = True
    """Whether a first round goes unrecorded."""
    clock: Callable[[], float] = perf_counter

    def taken(self, repeats: int, *, calls: int = 1) -> Turns:
        """The same with other numbers of turns and calls."""
        return replace(self, repeats=repeats, calls=calls)


def take_turns(contenders: Mapping[str, Run], turns: Turns) -> dict[str, Seconds]:
    """The seconds of one call of each contender, once for each turn."""
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for index in range(turns.repeats + turns.warm):
        for name, run in contenders.items():
            seconds = _take_turn(run, turns)
            if index >= turns.warm:
                taken[name].append(seconds)
    return {name: tuple(seconds) for name, seconds in taken.items()}


def _take_turn(run: Run, turns: Turns) -> float:
    sleep(SETTLE_S)
    if turns.calls > 1:
        run()
    return median(_time_call(run, turns.clock) for _ in range(turns.calls))


def _time_call(run: Run, clock: Callable[[], float]) -> float:
    started_at = clock()
    run()
    return clock() - started_at


async def seconds_of(answer: Awaitable[object]) -> float:
    """How long awaiting it takes."""
    started_at = perf_counter()
    await answer
    return perf_counter() - started_at
