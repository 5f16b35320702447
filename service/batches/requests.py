"""The lines of a batch's files: requests, and the answers to them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from service.batches.records import Batch, Counts, LineError, new_id

MAX_LINE_ERRORS = 100
"""More would be no help."""


class Request(NamedTuple):
    custom_id: str
    body: dict[str, Any]
    num_bytes: int
    """Of its line. What it takes once it is read is a few times that."""


class Answered(NamedTuple):
    """The answer to one request, in bytes of JSON."""

    status: int
    body: bytes
    tokens: int
    request_id: str


@dataclass(frozen=True)
class Checked:
    """What a whole input file holds."""

    total: int
    model: str | None
    errors: tuple[LineError, ...]


def check_input(path: Path, endpoint: str, *, max_requests: int, max_line_bytes: int) -> Checked:
    errors: list[LineError] = []
    seen: set[str] = set()
    models: set[str | None] = set()
    total = 0
    for number, line in _lines(path):
        total += 1
        if total > max_requests:
            message = f"the file has more than {max_requests} requests, which is the limit"
            errors.append(LineError(code="too_many_requests", message=message, line=number))
            break
        if len(line) > max_line_bytes:
            message = f"this line has {len(line)} bytes, the limit is {max_line_bytes}"
            errors.append(LineError(code="line_too_long", message=message, line=number))
            break
        found = _read(line, endpoint)
        if isinstance(found, LineError):
            error = found
        elif found.custom_id in seen:
            message = f"custom_id {found.custom_id[:80]!r} appears twice"
            error = LineError(code="duplicate_custom_id", message=message, param="custom_id")
        else:
            seen.add(found.custom_id)
            model = found.body.get("model")
            models.add(model if isinstance(model, str) else None)
            continue
        errors.append(replace(error, line=number))
        if len(errors) == MAX_LINE_ERRORS:
            break
    if not total:
        errors.append(LineError(code="empty_file", message="the file has no requests"))
    return Checked(total, models.pop() if len(models) == 1 else None, tuple(errors))


def read_requests(path: Path, endpoint: str) -> Iterator[Request]:
    """The requests of a checked file."""
    for _, line in _lines(path):
        found = _read(line, endpoint)
        assert isinstance(found, Request), "the file was checked"
        yield found


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Lines that are not blank, with their numbers from 1."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield number, line


def _read(line: bytes, endpoint: str) -> Request | LineError:
    try:
        fields = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        return LineError(code="invalid_json_line", message=f"this line is not JSON: {error}")
    if not isinstance(fields, dict):
        return LineError(code="invalid_request", message="this line is not a JSON object")
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
    return Request(custom_id, body, len(line))


def answer_line(request: Request, answered: Answered) -> bytes:
    response = {
        "status_code": answered.status,
        "request_id": answered.request_id,
        "body": orjson.Fragment(answered.body),
    }
    return _line(request.custom_id, response, None)


def expired_line(request: Request) -> bytes:
    message = "the batch expired before this request was answered"
    return _line(request.custom_id, None, {"code": "batch_expired", "message": message})


def _line(custom_id: str, response: dict[str, Any] | None, error: dict[str, str] | None) -> bytes:
    return orjson.dumps(
        {
            "id": new_id("batch_req"),
            "custom_id": custom_id,
            "response": response,
            "error": error,
        },
        option=orjson.OPT_APPEND_NEWLINE,
    )


class Progress(NamedTuple):
    """What a batch's files of answers hold already."""

    answered: set[str]
    counts: Counts


def resume(batch: Batch, output: Path, errors: Path) -> Progress:
    """Reads the answers that are there. From the first line on that is not whole, all are cut off,
    and their requests count as not answered: a kill tears the last line, a power cut any of those
    that were not on the disk yet."""
    done, tokens = _answered(output)
    failed, _ = _answered(errors)
    counts = Counts(
        total=batch.counts.total, completed=len(done), failed=len(failed - done), tokens=tokens
    )
    return Progress(done | failed, counts)


def _answered(path: Path) -> tuple[set[str], int]:
    found: set[str] = set()
    tokens = whole = 0
    if not path.exists():
        return found, tokens
    with path.open("r+b") as file:
        for line in file:
            fields = _whole_answer(line)
            if fields is None:
                break
            whole += len(line)
            found.add(fields["custom_id"])
            body = (fields["response"] or {}).get("body") or {}
            tokens += body.get("usage", {}).get("total_tokens", 0)
        file.truncate(whole)
    return found, tokens


def _whole_answer(line: bytes) -> dict[str, Any] | None:
    if not line.endswith(b"\n"):
        return None
    try:
        fields: dict[str, Any] = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return fields
