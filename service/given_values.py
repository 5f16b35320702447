"""Values of a request or a row, as errors about them repeat them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson

from engine.errors import InvalidInput, Quantity, shown

_KINDS: Mapping[type, str] = {list: "a list", np.ndarray: "a list"}


def json_type(value: Any) -> str:
    names = {type(None): "null", bool: "boolean", dict: "object", int: "number", float: "number"}
    return names.get(type(value), type(value).__name__)


def named(value: Any) -> str:
    """A value as its JSON, or what it is if that could be long. Only strings have quotes."""
    if isinstance(value, str):
        return repr(shown(value))
    if isinstance(value, int | float) and not isinstance(value, bool):
        return shown(repr(value))
    return str(actual_of(value))


def actual_of(value: Any) -> Quantity:
    """The same for the field `actual`."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    if value is None or isinstance(value, bool):
        return orjson.dumps(value).decode()
    if isinstance(value, str):
        return shown(value)
    if isinstance(value, dict):
        return f"an object with {shown(next(iter(value)))!r}" if value else "an empty object"
    return _KINDS.get(type(value), type(value).__name__)


def wrong_type(value: Any, param: str, wanted: str) -> InvalidInput:
    return InvalidInput(
        f"{param} must be {wanted}, got {named(value)}",
        code="invalid_type",
        param=param,
        actual=actual_of(value),
    )
