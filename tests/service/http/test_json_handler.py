"""What a handler of a JSON body may declare, and what it is given."""

from __future__ import annotations

import asyncio
import threading
from typing import Annotated, Any

import pytest
from fastapi import Cookie, Depends, Header, Query, Request, Response
from pydantic import BaseModel, field_validator

from service.errors import InvalidField
from service.http.json_handler import JsonHandler
from service.http.json_request import JsonRoute


class Body(BaseModel):
    size: int


async def checked(request: Request) -> None:
    if "refuse" in request.query_params:
        raise InvalidField("refused", param="refuse")


class Caller:
    def __init__(self, request: Request, x_name: Annotated[str, Header()] = "nobody") -> None:
        self.greeting = f"{x_name} at {request.url.path}"


def handler_of(endpoint: Any) -> JsonHandler:
    route = JsonRoute("/here", endpoint, methods=["POST"], dependencies=[Depends(checked)])
    return route.json_handler()


def posted(query: bytes = b"", **headers: str) -> Request:
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "POST", "path": "/here", "query_string": query}
    return Request({**scope, "headers": pairs, "server": ("here", 80), "scheme": "http"})


async def echo(
    body: Body,
    request: Request,
    caller: Annotated[Caller, Depends()],
    x_mode: Annotated[str | None, Header()] = None,
    only: Annotated[list[int] | None, Query()] = None,
) -> Response:
    said = f"{body.size} {request.method} {caller.greeting} {x_mode} {only}"
    return Response(said)


def answer(document: Any, request: Request) -> str:
    return bytes(asyncio.run(handler_of(echo)(request, document)).body).decode()


def test_a_handler_gets_what_it_declares() -> None:
    plain = answer({"size": 3}, posted())
    assert plain == "3 POST nobody at /here None None"
    full = answer({"size": 3}, posted(b"only=1&only=2", x_name="Ann", x_mode="fast"))
    assert full == "3 POST Ann at /here fast [1, 2]"


def test_what_is_not_as_declared_is_named() -> None:
    with pytest.raises(InvalidField) as of_body:
        answer({"size": "three"}, posted())
    assert of_body.value.param == "size"
    with pytest.raises(InvalidField) as of_query:
        answer({"size": 3}, posted(b"only=1&only=b"))
    assert of_query.value.param == "only[1]"
    with pytest.raises(InvalidField) as of_null:
        answer(None, posted())
    assert of_null.value.param is None


def test_functions_without_an_argument_run_before_the_body_is_read() -> None:
    with pytest.raises(InvalidField, match="refused"):
        answer({"size": "three"}, posted(b"refuse=1"))


class Watched(Body):
    thread: str = ""

    @field_validator("thread", mode="before")
    @classmethod
    def _tell_thread(cls, value: Any) -> str:
        return threading.current_thread().name


async def tell_thread(body: Watched) -> Response:
    return Response(body.thread)


@pytest.mark.parametrize(("num_bytes", "waits"), [(65_536, True), (65_537, False)])
def test_the_event_loop_does_not_wait_while_a_long_body_is_validated(
    num_bytes: int, waits: bool
) -> None:
    """Tens of thousands of edits or spans take half a second."""
    handler = handler_of(tell_thread)
    found = asyncio.run(handler(posted(), {"size": 3, "thread": ""}, num_bytes))
    assert (bytes(found.body).decode() == threading.main_thread().name) == waits


def test_what_would_be_passed_over_cannot_be_declared() -> None:
    async def of_a_cookie(body: Body, id: Annotated[str, Cookie()] = "") -> Response:
        return Response()

    async def of_a_number(body: Body, x_size: Annotated[int, Header()] = 0) -> Response:
        return Response()

    with pytest.raises(TypeError, match="cookie_params"):
        handler_of(of_a_cookie)
    with pytest.raises(TypeError, match="x-size is declared as another type"):
        handler_of(of_a_number)
