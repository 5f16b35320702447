"""Answers of the Batch API, in OpenAI's form."""

from __future__ import annotations

from typing import Any, Literal

from service.batches.records import BatchStatus
from service.http.schemas.responses.base import Answer


class FileAnswer(Answer):
    """`expires_at` is null for a file without an expiry of its own, which is kept as long as
    `LLN_BATCH_RETENTION_S` says."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: str
    status: Literal["processed"]
    status_details: None


class FileList(Answer):
    object: Literal["list"]
    data: list[FileAnswer]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedFile(Answer):
    id: str
    object: Literal["file"]
    deleted: Literal[True]


class BatchLineError(Answer):
    code: str
    message: str
    line: int | None
    param: str | None


class BatchLineErrors(Answer):
    object: Literal["list"]
    data: list[BatchLineError]


class BatchCounts(Answer):
    total: int
    completed: int
    failed: int


class BatchAnswer(Answer):
    """A batch in OpenAI's terms. `errors` are those of a file that could not be read as requests;
    requests that failed are in the file `error_file_id`."""

    id: str
    object: Literal["batch"]
    endpoint: str
    model: str | None
    errors: BatchLineErrors | None
    input_file_id: str
    completion_window: Literal["24h"]
    status: BatchStatus
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    expires_at: int
    in_progress_at: int | None
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: BatchCounts
    usage: dict[str, Any]
    metadata: dict[str, str] | None


class BatchList(Answer):
    object: Literal["list"]
    data: list[BatchAnswer]
    first_id: str | None
    last_id: str | None
    has_more: bool
