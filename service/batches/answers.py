"""The answers of a batch: the lines of its output file and of its error file."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from engine.platform.files import sync
from service.batches.records import OUTPUT, Batch, StoredFile, new_id


class Answered(NamedTuple):
    """The answer to one request, in bytes of JSON."""

    status: int
    body: bytes
    tokens: int
    request_id: str


def answer_line(custom_id: str, answered: Answered) -> tuple[bytes, ...]:
    """In pieces: the body may be large, and copies of it would hold up the event loop."""
    request = orjson.dumps({"id": new_id("batch_req"), "custom_id": custom_id})
    response = orjson.dumps({"status_code": answered.status, "request_id": answered.request_id})
    before = request[:-1] + b',"response":' + response[:-1] + b',"body":'
    return before, answered.body, b'},"error":null}\n'


def expired_line(custom_id: str) -> bytes:
    message = "the batch expired before this request was answered"
    return orjson.dumps(
        {
            "id": new_id("batch_req"),
            "custom_id": custom_id,
            "response": None,
            "error": {"code": "batch_expired", "message": message},
        },
        option=orjson.OPT_APPEND_NEWLINE,
    )


def append(path: Path, *pieces: bytes) -> None:
    """Adds a line to the end of a file or not at all, unless the process is killed meanwhile.

    It may still be lost in a power cut. Then its request is answered again, which costs less than
    waiting for the disk with each answer.
    """
    # Unbuffered: what a buffer still holds of a line that failed would be written on closing.
    with path.open("ab", buffering=0) as file:
        before = file.tell()
        try:
            for piece in pieces:
                rest = memoryview(piece)
                while rest:
                    rest = rest[file.write(rest) :]
        except OSError:
            with suppress(OSError):
                os.truncate(path, before)
            raise


class Found(NamedTuple):
    """What a file of answers holds."""

    custom_ids: set[str]
    tokens: int
    num_bytes: int
    """Up to the first line that is not whole: a kill tears the last line, a power cut any of those
    that were not on the disk yet."""


def read_answers(path: bytes) -> Found:
    """Runs in another process for a large file."""
    found: set[str] = set()
    tokens = whole = 0
    with Path(os.fsdecode(path)).open("rb") as file:
        for line in file:
            fields = _whole_answer(line)
            if fields is None:
                break
            whole += len(line)
            found.add(fields["custom_id"])
            body = (fields["response"] or {}).get("body") or {}
            tokens += body.get("usage", {}).get("total_tokens", 0)
    return Found(found, tokens, whole)


def _whole_answer(line: bytes) -> dict[str, Any] | None:
    if not line.endswith(b"\n"):
        return None
    try:
        fields: dict[str, Any] = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return fields


def written_files(batch: Batch, paths: dict[str, Path]) -> list[StoredFile]:
    """The files of answers that are not empty, by what they are called, safe on the disk."""
    found = []
    now = int(time.time())
    kept_s = batch.output_expires_s
    for name, path in paths.items():
        if not path.exists():
            continue
        num_bytes = path.stat().st_size
        if not num_bytes:  # of a line that was cut off
            path.unlink()
            continue
        sync(path)
        found.append(
            StoredFile(
                id=path.name,
                filename=f"{batch.id}_{name}.jsonl",
                purpose=OUTPUT,
                num_bytes=num_bytes,
                created_at=now,
                expires_at=None if kept_s is None else now + kept_s,
            )
        )
        sync(path.parent)
    return found
