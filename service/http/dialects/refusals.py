"""Fields that cannot be honoured are refused by name, so that none is silently ignored."""

from __future__ import annotations

from typing import Any

from engine.errors import InvalidInput, shown
from service.http.schemas.fields import json_type


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


TEXT_ONLY = "the models of this server read text alone"
