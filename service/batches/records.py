"""Files and batches, in the form that OpenAI's clients expect."""

from __future__ import annotations

import secrets
import time
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar

BatchStatus: TypeAlias = Literal[
    "validating",
    "failed",
    "in_progress",
    "finalizing",
    "completed",
    "expired",
    "cancelling",
    "cancelled",
]
FINISHED: frozenset[BatchStatus] = frozenset({"failed", "completed", "expired", "cancelled"})
ENDPOINTS = ("/v1/embeddings", "/v1/documents", "/v1/rerank")

INPUT, OUTPUT = "batch", "batch_output"
WINDOW_S = 24 * 3600
"""OpenAI knows one completion window, of 24 hours."""


Item = TypeVar("Item")


def new_id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(16)}"


class Page(NamedTuple, Generic[Item]):
    """A part of a list."""

    items: list[Item]
    has_more: bool


@dataclass(frozen=True, kw_only=True)
class StoredFile:
    id: str
    filename: str
    purpose: str
    num_bytes: int
    created_at: int
    expires_at: int | None = None

    def document(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.num_bytes,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
            "status_details": None,
        }


@dataclass(frozen=True, kw_only=True)
class LineError:
    """What is wrong with a line of an input file."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


@dataclass(frozen=True, kw_only=True)
class Counts:
    total: int = 0
    completed: int = 0
    failed: int = 0
    tokens: int = 0

    @property
    def answered(self) -> int:
        return self.completed + self.failed


@dataclass(frozen=True, kw_only=True)
class Batch:
    id: str
    endpoint: str
    input_file_id: str
    output_file_id: str
    """Reserved: the file exists once the batch has finished and has such answers."""
    error_file_id: str
    created_at: int
    expires_at: int
    metadata: dict[str, str] | None = None
    status: BatchStatus = "validating"
    counts: Counts = Counts()
    model: str | None = None
    errors: tuple[LineError, ...] = ()
    has_output: bool = False
    has_errors: bool = False
    output_expires_s: int | None = None
    reached: dict[str, int] = field(default_factory=dict)
    """When the batch came to each status."""

    @property
    def is_finished(self) -> bool:
        return self.status in FINISHED

    def to(self, status: BatchStatus, **changes: Any) -> Batch:
        return replace(
            self, status=status, reached={**self.reached, status: int(time.time())}, **changes
        )

    def document(self) -> dict[str, Any]:
        errors = {"object": "list", "data": [asdict(error) for error in self.errors]}
        reached = {f"{status}_at": self.reached.get(status) for status in _TIMED}
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "model": self.model,
            "errors": errors if self.errors else None,
            "input_file_id": self.input_file_id,
            "completion_window": "24h",
            "status": self.status,
            "output_file_id": self.output_file_id if self.has_output else None,
            "error_file_id": self.error_file_id if self.has_errors else None,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            **reached,
            "request_counts": {
                "total": self.counts.total,
                "completed": self.counts.completed,
                "failed": self.counts.failed,
            },
            "usage": {
                "input_tokens": self.counts.tokens,
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": 0,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": self.counts.tokens,
            },
            "metadata": self.metadata,
        }


_TIMED: tuple[BatchStatus, ...] = (
    "in_progress",
    "finalizing",
    "completed",
    "failed",
    "expired",
    "cancelling",
    "cancelled",
)
