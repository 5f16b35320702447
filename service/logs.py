"""Log lines: JSON for machines, short text for a terminal, with the ids of request and trace.

What a line is about goes into `extra={"fields": {...}}`. Texts of users never do.
"""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import Any

import orjson

from service.request_ids import current_request_id
from service.settings import Settings
from service.tracing import current_trace_id


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields: dict[str, Any] = getattr(record, "fields", {})
    ids = {"request_id": current_request_id.get(), "trace_id": current_trace_id.get()}
    return {name: value for name, value in ids.items() if value is not None} | fields


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

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
    """One readable line: time, level, event, and the fields as name=value."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        fields = "".join(f" {name}={value}" for name, value in _fields(record).items())
        line = f"{time} {record.levelname.lower():<7} {record.getMessage()}{fields}"
        if record.exc_info:
            line = f"{line}\n{self.formatException(record.exc_info)}"
        return line


def set_up_logs(settings: Settings) -> None:
    """Sends every logger of the process, ours and the libraries', through one handler."""
    as_json = settings.log_format == "json" or (
        settings.log_format == "auto" and not sys.stderr.isatty()
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else TextFormatter())
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler], force=True)
    # Start, stop and each request are logged once, by us.
    logging.getLogger("uvicorn").setLevel("WARNING")
