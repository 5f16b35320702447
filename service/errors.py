"""The one table that says how each kind of failure looks over HTTP and over gRPC.

Both protocols look a failure up here and nowhere else, so that they cannot drift apart.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from grpc import StatusCode

from engine.errors import (
    CheckpointError,
    DeadlineExceeded,
    DeviceFailure,
    EngineUnavailable,
    InsufficientMemory,
    InvalidInput,
    LLNError,
    ModelNotFound,
    Quantity,
    QueueFull,
    RequestCancelled,
    ResourceNotFound,
    TextTooLong,
    shown,
)


class UnreadableBody(InvalidInput):
    """The request is not what its protocol says it is: broken JSON, or text that is not UTF-8."""

    code = "invalid_json"


class InvalidField(InvalidInput):
    """A field is missing, unknown or of the wrong type."""

    code = "invalid_field"


class BodyTooLarge(InvalidInput):
    """The request is larger than the server reads."""

    code = "body_too_large"


class UnsupportedMediaType(InvalidInput):
    """The body is declared to be of a type, an encoding or a charset that is not read here."""

    code = "unsupported_media_type"


class BodyTimeout(LLNError):
    """The request did not arrive in time."""

    code = "body_timeout"


class AnswerNotTaken(RequestCancelled):
    """The caller is still there, and does not read its answer."""

    code = "answer_not_taken"


class Unauthenticated(LLNError):
    """The server asks for an API key, and the request brought none that it knows."""

    code = "invalid_api_key"


class OriginNotAllowed(LLNError):
    """A browser sent this for a page of another origin, and the settings do not name it."""

    code = "origin_not_allowed"


class MethodNotAllowed(LLNError):
    """The route exists, the method on it does not."""

    code = "method_not_allowed"


class NotAvailable(LLNError):
    """This server cannot do what was asked for, though another may: an extra is not installed."""

    code = "not_available"


class StorageFailure(LLNError):
    """What must be kept could not be written or read: the disk is full, or worse."""

    code = "storage_failure"


class PortInUse(Exception):
    """The server cannot listen where it should. No caller ever sees it; the message is one line."""


class ErrorRow(NamedTuple):
    """How one kind of failure looks from outside."""

    error: type[LLNError]
    http_status: int
    openai_type: str
    grpc_code: StatusCode


_BAD_REQUEST = "invalid_request_error"

ERROR_TABLE: tuple[ErrorRow, ...] = (
    ErrorRow(InvalidInput, 400, _BAD_REQUEST, StatusCode.INVALID_ARGUMENT),
    ErrorRow(TextTooLong, 400, _BAD_REQUEST, StatusCode.INVALID_ARGUMENT),
    ErrorRow(UnreadableBody, 400, _BAD_REQUEST, StatusCode.INVALID_ARGUMENT),
    ErrorRow(InvalidField, 422, _BAD_REQUEST, StatusCode.INVALID_ARGUMENT),
    ErrorRow(BodyTooLarge, 413, _BAD_REQUEST, StatusCode.RESOURCE_EXHAUSTED),
    ErrorRow(UnsupportedMediaType, 415, _BAD_REQUEST, StatusCode.INVALID_ARGUMENT),
    ErrorRow(Unauthenticated, 401, "authentication_error", StatusCode.UNAUTHENTICATED),
    ErrorRow(OriginNotAllowed, 403, "permission_error", StatusCode.PERMISSION_DENIED),
    ErrorRow(ModelNotFound, 404, _BAD_REQUEST, StatusCode.NOT_FOUND),
    ErrorRow(ResourceNotFound, 404, _BAD_REQUEST, StatusCode.NOT_FOUND),
    ErrorRow(MethodNotAllowed, 405, _BAD_REQUEST, StatusCode.UNIMPLEMENTED),
    ErrorRow(BodyTimeout, 408, _BAD_REQUEST, StatusCode.DEADLINE_EXCEEDED),
    ErrorRow(QueueFull, 429, "rate_limit_error", StatusCode.RESOURCE_EXHAUSTED),
    ErrorRow(RequestCancelled, 499, "request_cancelled", StatusCode.CANCELLED),
    ErrorRow(AnswerNotTaken, 499, "request_cancelled", StatusCode.DEADLINE_EXCEEDED),
    ErrorRow(NotAvailable, 501, "server_error", StatusCode.UNIMPLEMENTED),
    ErrorRow(StorageFailure, 503, "service_unavailable", StatusCode.UNAVAILABLE),
    ErrorRow(EngineUnavailable, 503, "service_unavailable", StatusCode.UNAVAILABLE),
    ErrorRow(InsufficientMemory, 507, "server_error", StatusCode.RESOURCE_EXHAUSTED),
    ErrorRow(DeadlineExceeded, 504, "timeout", StatusCode.DEADLINE_EXCEEDED),
    ErrorRow(CheckpointError, 500, "server_error", StatusCode.FAILED_PRECONDITION),
    ErrorRow(DeviceFailure, 500, "server_error", StatusCode.INTERNAL),
    ErrorRow(LLNError, 500, "server_error", StatusCode.INTERNAL),
)

_ROWS = {row.error: row for row in ERROR_TABLE}

ErrorFields: TypeAlias = dict[str, Quantity | None]


def row_for(error: LLNError) -> ErrorRow:
    """The row of an error's class, or of the nearest class above it."""
    return next(_ROWS[kind] for kind in type(error).__mro__ if kind in _ROWS)


def error_fields(error: LLNError) -> ErrorFields:
    """What a caller is told, in the order and under the names of the HTTP envelope."""
    return {
        "message": error.message,
        "type": row_for(error).openai_type,
        "code": error.code,
        "param": error.param,
        "limit": _in_64_bits(error.limit),
        "actual": _in_64_bits(error.actual),
    }


def _in_64_bits(value: Quantity | None) -> Quantity | None:
    """Most readers and writers of JSON know no larger whole numbers: those are told as text."""
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return shown(value)
    return value


def as_lln_error(error: BaseException) -> LLNError:
    """The error itself if it is one of ours; otherwise one that gives nothing internal away."""
    if isinstance(error, LLNError):
        return error
    return LLNError("The server failed on this request. Its log has the reason.")
