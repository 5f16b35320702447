"""Log lines: one JSON object each, or one readable line, with the request they belong to."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.logs import JsonFormatter, TextFormatter
from service.request_ids import current_request_id, take_or_make


@pytest.fixture
def request_id() -> Iterator[str]:
    token = current_request_id.set("trace-42")
    yield "trace-42"
    current_request_id.reset(token)


def record(message: str, **fields: object) -> logging.LogRecord:
    made = logging.LogRecord("service.test", logging.INFO, __file__, 1, message, (), None)
    made.fields = fields
    return made


def test_json_line(request_id: str) -> None:
    line = json.loads(JsonFormatter().format(record("request", status=200, place=Path("/tmp"))))
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "info",
        "logger": "service.test",
        "event": "request",
        "request_id": request_id,
        "status": 200,
        "place": "/tmp",
    }


def test_line_of_no_request_and_no_fields() -> None:
    made = logging.LogRecord("uvicorn", logging.WARNING, __file__, 1, "a %s", ("word",), None)
    assert json.loads(JsonFormatter().format(made))["event"] == "a word"


def test_exceptions_stay_in_their_line() -> None:
    try:
        raise ValueError("of a kind")
    except ValueError as error:
        made = record("failed")
        made.exc_info = (ValueError, error, error.__traceback__)
    text = JsonFormatter().format(made)
    assert "\n" not in text
    assert "ValueError: of a kind" in json.loads(text)["exception"]


def test_text_line(request_id: str) -> None:
    line = TextFormatter().format(record("request", status=200))
    assert line.endswith(f"info    request request_id={request_id} status=200")


@pytest.mark.parametrize("offered", ["a", "req_1/2:3=4@5+6-7.8", "f" * 128])
def test_sane_request_ids_are_taken(offered: str) -> None:
    assert take_or_make(offered) == offered


@pytest.mark.parametrize("offered", [None, "", "a b", "a\nb", "ü", "f" * 129, '"'])
def test_other_request_ids_are_replaced(offered: str | None) -> None:
    made = take_or_make(offered)
    assert made != offered
    assert take_or_make(made) == made
    assert take_or_make(offered) != made
