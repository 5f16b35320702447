"""Checks and completes benchmark plans, for both protocols and the command line."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

from engine.benchmarks.encoder import MAX_TRAINING_TOKENS
from engine.errors import InvalidInput, shown
from engine.platform.device import DTYPES
from engine.types import ModelInfo
from service.benchmarks.suites import KNOWN_ATTENTIONS, SUITES, BenchmarkPlan, Suite
from service.errors import InvalidField

ValueT = TypeVar("ValueT")
NumberT = TypeVar("NumberT", int, float)

DEFAULT_SUITE = "encoder"
MAX_LENGTH = 131_072
MAX_LENGTHS = 12
MAX_ATTENTIONS = 12
MAX_REPEATS = 20
MIN_SECONDS, MAX_SECONDS = 0.5, 60.0
_REPEATS = 3
_SECONDS = 5.0


def checked_plan(
    model: ModelInfo,
    *,
    suite: str | None = None,
    lengths: Sequence[int] | None = None,
    attentions: Sequence[str] | None = None,
    dtypes: Sequence[str] | None = None,
    repeats: int | None = None,
    seconds: float | None = None,
    training: bool | None = None,
) -> BenchmarkPlan:
    """Returns the plan with defaults filled in. Errors name the field, its value and the limit."""
    chosen = SUITES[_one_of("suite", _default(suite, DEFAULT_SUITE), SUITES)]
    given = {
        "attentions": attentions,
        "dtypes": dtypes,
        "repeats": repeats,
        "seconds": seconds,
        "training": training,
    }
    _refuse_unused(chosen, given)
    longest = min(MAX_TRAINING_TOKENS if training else MAX_LENGTH, model.max_tokens)
    fitting = [length for length in chosen.lengths if length <= longest]

    def length(param: str, value: int) -> int:
        error = _error_for(in_schema=1 <= value <= MAX_LENGTH)
        return _within(param, value, chosen.least_length, longest, error)

    def attention(param: str, value: str) -> str:
        error = _error_for(in_schema=value in KNOWN_ATTENTIONS)
        return _one_of(param, value, chosen.known_attentions, error)

    def dtype(param: str, value: str) -> str:
        return _one_of(param, value, DTYPES)

    takes_attentions = "attentions" in chosen.fields
    return BenchmarkPlan(
        suite=chosen.name,
        model=model.name,
        lengths=_each("lengths", _default(lengths, fitting or [longest]), MAX_LENGTHS, length),
        attentions=_each(
            "attentions", _default(attentions, chosen.attentions), MAX_ATTENTIONS, attention
        )
        if takes_attentions
        else (),
        dtypes=_each("dtypes", _default(dtypes, [model.dtype]), len(DTYPES), dtype),
        repeats=_within("repeats", _default(repeats, _REPEATS), 1, MAX_REPEATS),
        seconds=_within("seconds", _default(seconds, _SECONDS), MIN_SECONDS, MAX_SECONDS),
        training=_default(training, False),
    )


def _default(given: ValueT | None, default: ValueT) -> ValueT:
    return default if given is None else given


def _error_for(*, in_schema: bool) -> type[InvalidInput]:
    """A value that is valid by openapi.json but not in this plan is an InvalidInput (400)."""
    return InvalidInput if in_schema else InvalidField


def _refuse_unused(suite: Suite, given: Mapping[str, object]) -> None:
    """Rejects fields that the suite does not use. All suites use `lengths`."""
    fields = ", ".join(["lengths", *suite.fields])
    for param, value in given.items():
        if value is not None and param not in suite.fields:
            raise InvalidInput(
                f"the suite {suite.name} has no field {param}; its fields are {fields}",
                code="unused_field",
                param=param,
                limit=fields,
            )


def _each(
    param: str, values: Sequence[ValueT], most: int, check: Callable[[str, ValueT], ValueT]
) -> tuple[ValueT, ...]:
    """Returns the checked values without duplicates."""
    if not 1 <= len(values) <= most:
        raise InvalidField(
            f"{param} must have 1 to {most} values, got {len(values)}",
            param=param,
            limit=most,
            actual=len(values),
        )
    checked = (check(f"{param}[{index}]", value) for index, value in enumerate(values))
    return tuple(dict.fromkeys(checked))


def _one_of(
    param: str, value: str, names: Collection[str], error: type[InvalidInput] = InvalidField
) -> str:
    if value not in names:
        known = ", ".join(names)
        raise error(
            f"{param} must be one of {known}, got {shown(value)!r}",
            param=param,
            limit=known,
            actual=value,
        )
    return value


def _within(
    param: str,
    value: NumberT,
    least: float,
    most: float,
    error: type[InvalidInput] = InvalidField,
) -> NumberT:
    if not least <= value <= most:  # also true for a NaN
        raise error(
            f"{param} must be {least:g} to {most:g}, got {shown(value)}",
            param=param,
            limit=most if value > most else least,
            actual=value if -math.inf < value < math.inf else str(value),
        )
    return value
