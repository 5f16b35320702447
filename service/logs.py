"""Logging: JSON lines for machines, short text for a terminal, each with request and trace ids.

Pass structured values as `extra={"fields": {...}}`. Never log the texts of users.
"""

from __future__ import annotations

import logging
import random
import re
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

import orjson

from service.settings import Settings
from service.tracing import current_trace_id

REQUEST_ID_HEADER = "x-request-id"
"""The HTTP header and the gRPC metadata key."""

current_request_id: ContextVar[str | None] = ContextVar("current_request_id", default=None)

# Enough for every scheme in use, without characters that could break a log line or a header.
_SAFE_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")


def request_id_from(header: str | None) -> str:
    """Returns the client's request id if it is safe to repeat, else a new one."""
    if header is not None and _SAFE_ID.fullmatch(header):
        return header
    return f"{random.getrandbits(128):032x}"  # uuid4 would make a system call


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields: dict[str, Any] = getattr(record, "fields", {})
    ids = {"request_id": current_request_id.get(), "trace_id": current_trace_id.get()}
    return {name: value for name, value in ids.items() if value is not None} | fields


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()


class TextFormatter(logging.Formatter):
    """One readable line: time, level, event, then the fields as name=value."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        fields = "".join(f" {name}={value}" for name, value in _fields(record).items())
        line = f"{time} {record.levelname.lower():<7} {record.getMessage()}{fields}"
        if record.exc_info:
            line = f"{line}\n{self.formatException(record.exc_info)}"
        return line


def set_up_logs(settings: Settings) -> None:
    """Sends all log lines of the process, ours and the libraries', to one handler."""
    as_json = settings.log_format == "json" or (
        settings.log_format == "auto" and not sys.stderr.isatty()
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else TextFormatter())
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler], force=True)
    # uvicorn would log start, stop and requests a second time.
    logging.getLogger("uvicorn").setLevel("WARNING")
