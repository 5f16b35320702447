"""What stands under `input`: one text or several, as strings or as token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from engine.errors import InvalidInput
from engine.types import TextInput


def as_inputs(value: Any, param: str) -> Sequence[TextInput]:
    """A lone text, or a lone list of token ids, is a list of one; the engine checks the rest."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, np.ndarray):  # ids of a large body
        return [cast(Sequence[int], value)]
    if not isinstance(value, list):
        raise InvalidInput(
            f"{param} must be a string, token ids, or a list of either, got {_json_type(value)}",
            code="invalid_type",
            param=param,
            actual=_json_type(value),
        )
    if value and all(type(item) is int for item in value):
        return [value]
    return cast(Sequence[TextInput], value)


def _json_type(value: Any) -> str:
    names = {type(None): "null", bool: "boolean", dict: "object", int: "number", float: "number"}
    return names.get(type(value), type(value).__name__)
