"""Errors: one table of statuses and codes for both protocols."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from grpc import StatusCode

import engine.errors
from engine.errors import (
    DeadlineExceeded,
    InvalidInput,
    LLNError,
    ModelNotFound,
    QueueFull,
    RequestCancelled,
    TextTooLong,
    shown,
)
from service import errors as service_errors
from service.errors import (
    ERROR_TABLE,
    BodyTooLarge,
    InvalidField,
    as_lln_error,
    error_fields,
    row_for,
)


def all_errors() -> Iterator[type[LLNError]]:
    for module in (engine.errors, service_errors):
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, LLNError):
                yield value


def test_every_error_class_has_one_row_of_its_own() -> None:
    listed = [row.error for row in ERROR_TABLE]
    assert len(listed) == len(set(listed))
    assert set(listed) == set(all_errors())


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (InvalidInput("x"), 400, StatusCode.INVALID_ARGUMENT),
        (TextTooLong("x"), 400, StatusCode.INVALID_ARGUMENT),
        (InvalidField("x"), 422, StatusCode.INVALID_ARGUMENT),
        (BodyTooLarge("x"), 413, StatusCode.RESOURCE_EXHAUSTED),
        (ModelNotFound("x"), 404, StatusCode.NOT_FOUND),
        (QueueFull("x"), 429, StatusCode.RESOURCE_EXHAUSTED),
        (RequestCancelled("x"), 499, StatusCode.CANCELLED),
        (DeadlineExceeded("x"), 504, StatusCode.DEADLINE_EXCEEDED),
        (LLNError("x"), 500, StatusCode.INTERNAL),
    ],
)
def test_row_for(error: LLNError, status: int, code: StatusCode) -> None:
    row = row_for(error)
    assert (row.http_status, row.grpc_code) == (status, code)


def test_an_unlisted_class_has_the_row_of_its_base_class() -> None:
    class TooManyTables(TextTooLong):
        pass

    assert row_for(TooManyTables("x")).error is TextTooLong


def test_error_fields_are_the_envelope() -> None:
    error = TextTooLong("too long", param="input[2]", limit=512, actual=600)
    assert error_fields(error) == {
        "message": "too long",
        "type": "invalid_request_error",
        "code": "text_too_long",
        "param": "input[2]",
        "limit": 512,
        "actual": 600,
    }


def test_values_of_callers_are_shortened() -> None:
    error = InvalidInput(f"no {shown('x' * 9_999)}", param="y" * 9_999, actual="z" * 9_999)
    assert error.message == f"no {'x' * 77}..."
    assert (error.param, error.actual) == ("y" * 77 + "...", "z" * 77 + "...")
    assert shown("x" * 80) == "x" * 80
    assert error_fields(InvalidInput("no", actual=10**400))["actual"] == "1" + "0" * 76 + "..."


def test_other_exceptions_reveal_nothing() -> None:
    found = as_lln_error(RuntimeError("secret path /etc/passwd"))
    assert "secret" not in found.message
    assert row_for(found).http_status == 500
