"""Answers about benchmarks and their comparison."""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic import Field

from service.http.schemas.responses.base import Answer, ErrorDetail


class BenchmarkAnswer(Answer):
    """Rows have the columns of their suite, which GET /v1/benchmarks/suites lists."""

    object: Literal["benchmark"]
    id: str
    replica: str
    state: Literal["queued", "running", "done", "failed", "cancelled", "interrupted"]
    suite: str
    model: str
    lengths: list[int]
    attentions: list[str]
    dtypes: list[str]
    repeats: int
    seconds: float
    training: bool
    created_at: float
    started_at: float | None
    finished_at: float | None
    num_rows: int
    rows: list[dict[str, str | int | float]]
    machine: dict[str, str]
    error: ErrorDetail | None


class BenchmarkList(Answer):
    object: Literal["list"]
    data: list[BenchmarkAnswer]


class MeasureValue(Answer):
    name: str
    unit: str
    better: Literal["lower", "higher"]


class SuiteValue(Answer):
    name: str
    about: str
    fields: list[str]
    lengths: list[int]
    attentions: list[str]
    known_attentions: list[str]
    labels: list[str]
    x: MeasureValue
    measures: list[MeasureValue]


class SuiteList(Answer):
    object: Literal["list"]
    data: list[SuiteValue]


class Change(Answer):
    """One figure in two runs; `ratio` is b's over a's, null where a's is 0."""

    a: float
    b: float
    ratio: float | None
    better: Literal["a", "b", "neither"]


class ComparedRow(Answer):
    key: dict[str, str | int | float]
    measures: dict[str, Change]


PlanValue: TypeAlias = str | int | float | bool | list[int] | list[str]


class ComparisonAnswer(Answer):
    object: Literal["benchmark_comparison"]
    suite: str
    a: str
    b: str
    rows: list[ComparedRow]
    only_in_a: list[dict[str, str | int | float]]
    only_in_b: list[dict[str, str | int | float]]
    plan: dict[str, tuple[PlanValue, PlanValue]] = Field(
        description="The options of the two runs that differ."
    )
    machine: dict[str, tuple[str | None, str | None]]
