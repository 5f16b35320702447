"""The service's errors, and the table that maps every error to an HTTP and a gRPC status.

Both protocols use this table and no other, so they cannot drift apart. An error without a row of
its own has the row of its nearest base class.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
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
    RankLost,
    RequestCancelled,
    ResourceNotFound,
    TextTooLong,
    shown,
)


class UnreadableBody(InvalidInput):
    """The request cannot be decoded: it is broken JSON, or text that is not UTF-8."""

    code = "invalid_json"


class InvalidField(InvalidInput):
    """A field is missing, unknown or of the wrong type."""

    code = "invalid_field"


class BodyTooLarge(InvalidInput):
    """The request is larger than the server reads."""

    code = "body_too_large"


class UnsupportedMediaType(InvalidInput):
    """The server does not read the declared media type, content encoding or charset."""

    code = "unsupported_media_type"


class RangeNotSatisfiable(InvalidInput):
    """The requested range of bytes begins after the end of the file."""

    code = "range_not_satisfiable"


class BodyTimeout(LLNError):
    """The request did not arrive in time."""

    code = "body_timeout"


class AnswerNotTaken(RequestCancelled):
    """The client is still connected but does not read the answer."""

    code = "answer_not_taken"


class Unauthenticated(LLNError):
    """The server requires an API key, and the request has none or an unknown one."""

    code = "invalid_api_key"


class OriginNotAllowed(LLNError):
    """A browser sent the request from a page of an origin that is not allowed."""

    code = "origin_not_allowed"


class MethodNotAllowed(LLNError):
    """The route exists, but not for this HTTP method."""

    code = "method_not_allowed"


class NotAvailable(LLNError):
    """This server cannot do this, though another may: for example, an extra is not installed."""

    code = "not_available"


class StorageFailure(LLNError):
    """The server could not read or write its storage. The disk may be full."""

    code = "storage_failure"


class StorageFull(StorageFailure):
    """What is stored has reached a limit."""

    code = "storage_full"


class PortInUse(Exception):
    """The server cannot listen on its port. Raised at start, so no client sees it."""


class ErrorRow(NamedTuple):
    """How both protocols report one class of errors."""

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
    ErrorRow(RangeNotSatisfiable, 416, _BAD_REQUEST, StatusCode.OUT_OF_RANGE),
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
    ErrorRow(StorageFull, 503, "service_unavailable", StatusCode.UNAVAILABLE),
    ErrorRow(EngineUnavailable, 503, "service_unavailable", StatusCode.UNAVAILABLE),
    ErrorRow(RankLost, 503, "service_unavailable", StatusCode.UNAVAILABLE),
    ErrorRow(InsufficientMemory, 507, "server_error", StatusCode.RESOURCE_EXHAUSTED),
    ErrorRow(DeadlineExceeded, 504, "timeout", StatusCode.DEADLINE_EXCEEDED),
    ErrorRow(CheckpointError, 500, "server_error", StatusCode.FAILED_PRECONDITION),
    ErrorRow(DeviceFailure, 500, "server_error", StatusCode.INTERNAL),
    ErrorRow(LLNError, 500, "server_error", StatusCode.INTERNAL),
)

_ROWS = {row.error: row for row in ERROR_TABLE}

ErrorFields: TypeAlias = dict[str, Quantity | None]


def row_for(error: LLNError) -> ErrorRow:
    """Returns the row of the error's class, or of its nearest base class in the table."""
    return next(_ROWS[kind] for kind in type(error).__mro__ if kind in _ROWS)


def error_fields(error: LLNError) -> ErrorFields:
    """Returns the fields of the HTTP error envelope, in its order."""
    return {
        "message": error.message,
        "type": row_for(error).openai_type,
        "code": error.code,
        "param": error.param,
        "limit": _in_64_bits(error.limit),
        "actual": _in_64_bits(error.actual),
    }


def _in_64_bits(value: Quantity | None) -> Quantity | None:
    """Returns larger integers as text: most JSON readers and writers do not support them."""
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return shown(value)
    return value


def as_lln_error(error: BaseException) -> LLNError:
    """Returns an LLNError unchanged, and for any other error one that reveals no internals."""
    if isinstance(error, LLNError):
        return error
    return LLNError("The server failed to process this request. The reason is in the server's log.")


_OURS = re.compile(r"^(input|texts)(?=$|\[)")
_ONLY_INPUT = re.compile(r"^input(\[0\])?$")


@contextmanager
def report_params(rename: Callable[[str], str]) -> Iterator[None]:
    """Makes errors raised inside call parameters by their names in the request."""
    try:
        yield
    except LLNError as error:
        old = error.param or ""
        new = rename(old)
        if new == old:
            raise
        raise error.with_param(new) from error


def report_input_as(name: str, *, lone: bool) -> AbstractContextManager[None]:
    """Makes errors raised inside call the input by its name in the request.

    The engine calls it `input`, as OpenAI does, and `texts` where there is a query besides; other
    requests have other names. Use `lone` if the request holds one text, not a list: the engine's
    `input[0]` is then just `name`.
    """
    pattern = _ONLY_INPUT if lone else _OURS
    return report_params(lambda param: pattern.sub(name, param, count=1))


_PLACE = re.compile(r"^(?P<name>\w+)(?:\[(?P<index>\d+)\])?(?P<rest>.*)$")


@contextmanager
def report_names(names: Mapping[str, str | Sequence[str]]) -> Iterator[None]:
    """Makes errors raised inside use a vendor's names for the engine's parameters.

    The names of the items of a list stand in a list: `{"input": ["texts[0]", "texts[7]"]}`.
    """
    try:
        yield
    except LLNError as error:
        old = error.param or ""
        place = _PLACE.match(old)
        if place is None or place["name"] not in names:
            raise
        name, index = names[place["name"]], place["index"]
        if isinstance(name, str):
            new = name if index is None else f"{name}[{index}]"
        else:
            new = name[int(index)] if index is not None else name[0].partition("[")[0]
        raise error.with_param(new + place["rest"]) from error
