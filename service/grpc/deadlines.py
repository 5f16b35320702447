"""How long a call may still take."""

from __future__ import annotations

from service.grpc.status import Context
from service.settings import Settings


def seconds_left(context: Context, settings: Settings) -> float:
    """Until the client's deadline, or as long as the server ever lets a request take."""
    remaining: float | None = context.time_remaining()
    if remaining is None:
        return settings.request_timeout_s
    return min(remaining, settings.request_timeout_s)
