"""What a suite of benchmarks is, and what it is asked to measure."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from engine.engine import AsyncEngine
from service.load.client import Target

Value: TypeAlias = str | int | float
Row: TypeAlias = Mapping[str, Value]
Field: TypeAlias = Literal["attentions", "dtypes", "repeats", "seconds", "training"]


@dataclass(frozen=True, kw_only=True)
class BenchmarkPlan:
    """One run, with nothing left to be decided; made by `plan.checked_plan`."""

    suite: str
    model: str
    lengths: tuple[int, ...]
    attentions: tuple[str, ...]
    dtypes: tuple[str, ...]
    repeats: int
    seconds: float
    """Of the suites that go on for a time: how long each of their points takes."""
    training: bool = False
    """A step of training instead of a forward pass."""


@dataclass(frozen=True)
class Measure:
    """A figure of a row that runs can be compared by."""

    name: str
    unit: str
    better: Literal["lower", "higher"]


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What a suite measures with."""

    engine: AsyncEngine
    server: Target | None
    """This very server, as a client reaches it; None where nothing listens."""


@dataclass(frozen=True, kw_only=True)
class Suite:
    name: str
    about: str
    fields: tuple[Field, ...]
    """Of a plan, those that it uses besides lengths."""
    lengths: tuple[int, ...]
    least_length: int = 1
    attentions: tuple[str, ...] = ()
    known_attentions: tuple[str, ...] = ()
    labels: tuple[str, ...]
    """The columns that tell one line of a plot from another."""
    x: Measure
    measures: tuple[Measure, ...]
    """The first one is what a plot shows."""
    grows_with_text: bool
    """Whether a plot's guides, linear and quadratic in x, mean anything."""
    rows: Callable[[Bench, BenchmarkPlan], AsyncGenerator[Row, None]]
    num_rows: Callable[[BenchmarkPlan], int]

    @property
    def key_columns(self) -> tuple[str, ...]:
        """What makes a row of one run the counterpart of another's."""
        return (*self.labels, self.x.name)

    def key(self, row: Row) -> tuple[Value, ...]:
        return tuple(row[name] for name in self.key_columns)
