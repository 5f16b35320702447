"""Fields that cannot be honoured are refused by name, so that none is silently ignored."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from engine.errors import InvalidInput, shown
from service.given_values import json_type


def refuse(param: str, value: Any, why: str) -> InvalidInput:
    """The error for a value of a field that this server knows and cannot meet."""
    actual = json_type(value)
    what = param
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        actual, what = shown(value), f"{param} {shown(value)!r}"
    return InvalidInput(
        f"{what} is not available here: {why}",
        code="not_available",
        param=param,
        actual=actual,
    )


def refuse_given(body: Any, reasons: dict[str, str]) -> None:
    """Refuses fields of these names that have a value at all."""
    for param, why in reasons.items():
        value = getattr(body, param)
        if value not in (None, False):
            raise refuse(param, value, why)


def agreed(body: BaseModel, *names: str) -> Any:
    """The value of an option that has several names, None if it is not given. Raises InvalidInput
    if two of them say different things: one would be ignored."""
    given = {name: getattr(body, name) for name in names if name in body.model_fields_set}
    values = [(name, value) for name, value in given.items() if value is not None]
    for name, value in values[1:]:
        first, chosen = values[0]
        if value != chosen:
            raise contradiction(
                f"{first} and {name} are one option, and say different things", name, value
            )
    return values[0][1] if values else None


def contradiction(message: str, param: str, value: Any) -> InvalidInput:
    """The error for a field that says something else than another one."""
    is_short = isinstance(value, str | int | float) and not isinstance(value, bool)
    return InvalidInput(
        message,
        code="contradictory_fields",
        param=param,
        actual=shown(value) if is_short else json_type(value),
    )


TEXT_ONLY = "the models of this server read text alone"
