"""The caller's deadline, as its header tells it."""

from __future__ import annotations

from engine.errors import InvalidInput, shown

TIMEOUT_HEADER = "x-request-timeout-ms"


def caller_timeout_s(header: str | None, limit_s: float) -> float:
    """The caller's deadline, never beyond the server's own."""
    return limit_s if header is None else min(_milliseconds(header) / 1000, limit_s)


def _milliseconds(value: str) -> int:
    if not value.isdecimal() or int(value[:12]) == 0:
        raise InvalidInput(
            f"{TIMEOUT_HEADER} must be a positive whole number of milliseconds, "
            f"got {shown(value)!r}",
            code="invalid_timeout",
            param=TIMEOUT_HEADER,
            limit=1,
            actual=value,
        )
    return int(value[:12])
