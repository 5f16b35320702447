"""Two runs of one suite, row by row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeVar

from engine.errors import InvalidInput
from service.benchmarks.job import BenchmarkJob
from service.benchmarks.suite import Measure, Row, Suite
from service.benchmarks.suites import SUITES

ValueT = TypeVar("ValueT")


@dataclass(frozen=True, kw_only=True)
class Change:
    """One figure in both runs."""

    a: float
    b: float
    ratio: float | None
    """b's over a's; None where a's is 0."""
    better: Literal["a", "b", "neither"]


@dataclass(frozen=True, kw_only=True)
class ComparedRow:
    key: Row
    measures: Mapping[str, Change]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    suite: str
    a: str
    b: str
    rows: tuple[ComparedRow, ...]
    only_in_a: tuple[Row, ...]
    only_in_b: tuple[Row, ...]
    plan: Mapping[str, tuple[Any, Any]]
    """What the two were asked for, where that differs: figures of requests of other lengths, say,
    are no better or worse for it."""
    machine: Mapping[str, tuple[str | None, str | None]]
    """What the two were measured on, where that differs."""


def compare(a: BenchmarkJob, b: BenchmarkJob) -> Comparison:
    """What stands in both is compared; what stands in one is named."""
    if a.plan.suite != b.plan.suite:
        raise InvalidInput(
            f"{a.id} is of the suite {a.plan.suite} and {b.id} of {b.plan.suite}: "
            "only runs of one suite can be compared",
            code="different_suites",
            param="b",
            limit=a.plan.suite,
            actual=b.plan.suite,
        )
    suite = SUITES[a.plan.suite]
    rows_a, rows_b = _by_key(suite, a), _by_key(suite, b)
    return Comparison(
        suite=suite.name,
        a=a.id,
        b=b.id,
        rows=tuple(
            ComparedRow(
                key=_key(suite, row),
                measures={
                    measure.name: _change(measure, row, rows_b[key])
                    for measure in suite.measures
                    if measure.name in row and measure.name in rows_b[key]
                },
            )
            for key, row in rows_a.items()
            if key in rows_b
        ),
        only_in_a=tuple(_key(suite, row) for key, row in rows_a.items() if key not in rows_b),
        only_in_b=tuple(_key(suite, row) for key, row in rows_b.items() if key not in rows_a),
        plan=_differences(asdict(a.plan), asdict(b.plan)),
        machine=_differences(a.machine, b.machine),
    )


def _differences(
    a: Mapping[str, ValueT], b: Mapping[str, ValueT]
) -> dict[str, tuple[ValueT | None, ValueT | None]]:
    names = sorted({*a, *b})
    return {name: (a.get(name), b.get(name)) for name in names if a.get(name) != b.get(name)}


def _by_key(suite: Suite, job: BenchmarkJob) -> dict[tuple[object, ...], Row]:
    return {suite.key(row): row for row in job.rows}


def _key(suite: Suite, row: Row) -> Row:
    return {name: row[name] for name in suite.key_columns}


def _change(measure: Measure, row_a: Row, row_b: Row) -> Change:
    a, b = float(row_a[measure.name]), float(row_b[measure.name])
    if a == b:
        better: Literal["a", "b", "neither"] = "neither"
    else:
        better = "b" if (b < a) == (measure.better == "lower") else "a"
    return Change(a=a, b=b, ratio=b / a if a else None, better=better)
