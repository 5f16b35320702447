"""The requests of a batch: the lines of its input file.

These functions run in another process for large files, so they import little.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from engine.errors import shown
from service.batches.records import LineError
from service.large_json import excess_of, may_exceed, repeated_field, with_arrays

MAX_LINE_ERRORS = 100
"""More would be no help."""


class Request(NamedTuple):
    custom_id: str
    body: dict[str, Any]
    num_bytes: int
    """Bytes of its line. Once it is read it takes a few times as many."""


@dataclass(frozen=True)
class Checked:
    """What a whole input file holds."""

    total: int
    model: str | None
    errors: tuple[LineError, ...]


def check_input(path: bytes, endpoint: str, *, max_requests: int, max_line_bytes: int) -> Checked:
    errors: list[LineError] = []
    seen: set[str] = set()
    models: set[str | None] = set()
    total = 0
    for number, line in lines_of(Path(os.fsdecode(path)), max_line_bytes):
        total += 1
        if beyond := _beyond_limits(total, line, max_requests, max_line_bytes):
            errors.append(replace(beyond, line=number))
            break
        found = _check(line, endpoint)
        if isinstance(found, Request) and found.custom_id in seen:
            found = _duplicate(found.custom_id)
        if isinstance(found, LineError):
            errors.append(replace(found, line=number))
            if len(errors) == MAX_LINE_ERRORS:
                break
            continue
        seen.add(found.custom_id)
        model = found.body.get("model")
        models.add(model if isinstance(model, str) else None)
    if not total:
        errors.append(LineError(code="empty_file", message="the file has no requests"))
    return Checked(total, models.pop() if len(models) == 1 else None, tuple(errors))


def _beyond_limits(
    total: int, line: bytes, max_requests: int, max_line_bytes: int
) -> LineError | None:
    """What makes it pointless to read on."""
    if total > max_requests:
        message = f"the file has more than {max_requests} requests, which is the limit"
        return LineError(code="too_many_requests", message=message)
    if len(line.rstrip(b"\r\n")) > max_line_bytes:
        message = f"this line has more than {max_line_bytes} bytes, which is the limit"
        return LineError(code="line_too_long", message=message)
    return None


def _duplicate(custom_id: str) -> LineError:
    message = f"custom_id {custom_id[:80]!r} appears twice"
    return LineError(code="duplicate_custom_id", message=message, param="custom_id")


def read_request(line: bytes, endpoint: str) -> Request:
    """A line of a checked file."""
    found = _request_of(line, orjson.loads(line), endpoint)
    assert isinstance(found, Request), "the file was checked"
    return found


def lines_of(path: Path, max_bytes: int | None = None) -> Iterator[tuple[int, bytes]]:
    """Lines that are not blank, with their numbers from 1. A line of more than `max_bytes` comes in
    parts, and the first part is too long already."""
    most = -1 if max_bytes is None else max_bytes + len(b"\r\n")
    with path.open("rb") as file:
        number = 0
        while line := file.readline(most):
            number += 1
            if not line.isspace():
                yield number, line


def _check(line: bytes, endpoint: str) -> Request | LineError:
    fields = _fields_of(line)
    if isinstance(fields, LineError):
        return fields
    if (repeated := repeated_field(line, fields)) is not None:
        path = shown(repeated.path)
        message = f"{path} is in this line more than once, again at byte {repeated.position}"
        return LineError(code="repeated_field", message=message, param=path)
    return _request_of(line, fields, endpoint)


def _fields_of(line: bytes) -> dict[str, Any] | LineError:
    try:
        fields = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        return LineError(code="invalid_json_line", message=f"this line is not JSON: {error}")
    if not isinstance(fields, dict):
        return LineError(code="invalid_request", message="this line is not a JSON object")
    return fields


def _request_of(line: bytes, fields: dict[str, Any], endpoint: str) -> Request | LineError:
    custom_id, url, body = fields.get("custom_id"), fields.get("url"), fields.get("body")
    if not isinstance(custom_id, str) or not custom_id:
        return LineError(
            code="missing_required_parameter",
            message="custom_id must be a string that is not empty",
            param="custom_id",
        )
    if fields.get("method") != "POST":
        return LineError(code="invalid_method", message="method must be POST", param="method")
    if url != endpoint:
        return LineError(
            code="invalid_url",
            message=f"url must be {endpoint}, as the batch says, got {str(url)[:80]!r}",
            param="url",
        )
    if not isinstance(body, dict):
        return LineError(code="invalid_request", message="body must be an object", param="body")
    request = Request(custom_id, with_arrays(body), len(line))
    if may_exceed(line) and (excess := excess_of(fields)) is not None:
        message = (
            f"this line has more than {excess.limit} {excess.what}, token ids in long lists aside"
        )
        return LineError(code=excess.code, message=message)
    return request
