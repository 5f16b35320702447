"""Records in JSON."""

from __future__ import annotations

import base64

from engine.errors import InvalidInput


def decoded(record: str) -> bytes:
    try:
        return base64.b64decode(record, validate=True)
    except ValueError:
        raise InvalidInput("record is not base64", code="invalid_record", param="record") from None


def encoded(record: bytes) -> str:
    return base64.b64encode(record).decode()
