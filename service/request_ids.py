"""Request ids: taken from the caller if they are sane, made otherwise, known to every log line."""

from __future__ import annotations

import random
import re
from contextvars import ContextVar

HEADER = "x-request-id"
"""The name of the HTTP header and of the gRPC metadata key."""

current_request_id: ContextVar[str | None] = ContextVar("current_request_id", default=None)

# Long enough for every scheme in use, and nothing that could break a log line or a header.
_SANE = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")


def take_or_make(offered: str | None) -> str:
    """The caller's id if it can be repeated safely, else a new one."""
    if offered is not None and _SANE.fullmatch(offered):
        return offered
    return f"{random.getrandbits(128):032x}"  # a UUID would cost a call of the system
