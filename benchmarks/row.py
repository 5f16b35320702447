"""One measured figure, what was expected of it, and the raw times behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from benchmarks.timing import Seconds, ratios


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
    """Every turn of everyone this figure compares."""
    spread: tuple[float, float] | None = None
    """The smallest and the largest value of single turns."""
    note: str = ""
    """What else was seen: where to look if the target is missed."""

    @property
    def is_met(self) -> bool | None:
        return None if self.target is None else self.target.is_met_by(self.value)

    @property
    def verdict(self) -> str:
        """What was found where something else was wanted, in words."""
        found = f"{self.case}: {self.measure}: {self.value:.4g}, wanted {self.target}"
        return f"{found} ({self.note})" if self.note else found


def least_row(
    values: Sequence[float], *, case: str, measure: str, target: Target | None = None
) -> Row:
    """The smallest of several values, which are no times."""
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
    """Time of one over time of the other: the median of the turns."""
    by_turn = ratios(taken[over], taken[under])
    return Row(
        case=case,
        measure=measure,
        value=median(by_turn),
        target=target,
        seconds={name: taken[name] for name in (over, under)},
        spread=(min(by_turn), max(by_turn)),
    )
