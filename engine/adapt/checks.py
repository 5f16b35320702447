"""Checks of a plan's numbers and names: one line says what is wanted, and what was given."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from engine.errors import InvalidInput, shown


def check_whole(name: str, value: object, *, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise invalid(name, value, f"a whole number of at least {least}")


def check_number(name: str, value: object, *, most: float = sys.float_info.max) -> None:
    """Of at least 0, and finite."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        any_size = most == sys.float_info.max
        raise invalid(name, value, "a number of at least 0" if any_size else f"from 0 to {most:g}")


def check_type(name: str, value: object, kind: type, wanted: str) -> None:
    if not isinstance(value, kind):
        raise invalid(name, value, wanted)


def check_name(name: str, value: object, known: Sequence[str]) -> None:
    if value not in known:
        raise invalid(name, value, f"one of {', '.join(known)}")


def invalid(name: str, value: object, wanted: str) -> InvalidInput:
    return InvalidInput(
        f"{name} must be {wanted}, got {shown(repr(value))}",
        code="invalid_training_plan",
        param=name,
        limit=wanted,
        actual=repr(value),
    )
