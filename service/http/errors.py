"""Errors as HTTP answers: one JSON envelope, whether we or the framework found the error."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn, TypeAlias

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match

from engine.errors import LLNError, Quantity, ResourceNotFound, shown
from service.errors import (
    ErrorFields,
    InvalidField,
    MethodNotAllowed,
    RangeNotSatisfiable,
    Unauthenticated,
    error_fields,
    row_for,
)
from service.given_values import actual_of, named
from service.http.json_response import json_response
from service.repeated_fields import path_of

ErrorShape: TypeAlias = Callable[[ErrorFields], dict[str, Any]]
"""How a vendor's clients expect an error to look, from the fields of ours."""

_AT_ROOT = (
    "; text-embeddings-inference embeds at /embed and ranks at /rerank, OpenAI embeds at "
    "/v1/embeddings"
)
"""text-embeddings-inference also takes requests for its one model at /."""


def own_shape(fields: ErrorFields) -> dict[str, Any]:
    return {"error": fields}


def error_response(error: LLNError, shape: ErrorShape = own_shape) -> Response:
    """`{"error": {message, type, code, param, limit, actual}}`, or the same in a vendor's shape,
    with the status of its kind."""
    headers = {}
    if error.retry_after_s is not None:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
    if isinstance(error, MethodNotAllowed):
        headers["allow"] = str(error.limit)
    if isinstance(error, RangeNotSatisfiable):
        headers["content-range"] = f"bytes */{error.limit}"
    if isinstance(error, Unauthenticated):
        headers["www-authenticate"] = 'Bearer realm="lln"'
    return json_response(shape(error_fields(error)), row_for(error).http_status, headers)


def install_error_handlers(app: FastAPI, routes: Sequence[APIRoute]) -> None:
    """Turns the framework's errors into ours, which ObserveMiddleware answers like all others."""
    app.add_exception_handler(RequestValidationError, _raise_invalid_field)
    app.add_exception_handler(HTTPException, partial(_raise_typed, routes))


async def _raise_invalid_field(_: Request, error: Exception) -> NoReturn:
    assert isinstance(error, RequestValidationError)  # registered for nothing else
    raise invalid_field(error.errors(), error.body) from error


async def _raise_typed(routes: Sequence[APIRoute], request: Request, error: Exception) -> NoReturn:
    assert isinstance(error, HTTPException)  # registered for nothing else
    if error.status_code == 404:
        message = f"there is nothing at {shown(request.url.path)}"
        bare = request.url.path.rstrip("/")
        if bare != request.url.path and _is_served(routes, request, bare):
            message += f"; did you mean {shown(bare)}?"
        raise ResourceNotFound(message, code="route_not_found") from error
    if error.status_code == 405:
        allowed = _allowed(routes, request)
        advice = _AT_ROOT if (request.url.path, request.method) == ("/", "POST") else ""
        raise MethodNotAllowed(
            f"{shown(request.url.path)} takes {allowed}, got {request.method}{advice}",
            limit=allowed,
            actual=request.method,
        ) from error
    raise LLNError(str(error.detail)) from error


def _is_served(routes: Sequence[APIRoute], request: Request, path: str) -> bool:
    scope = {**request.scope, "path": path}
    return any(route.matches(scope)[0] is not Match.NONE for route in routes)


def _allowed(routes: Sequence[APIRoute], request: Request) -> str:
    """Every verb of the path. The framework names only those of the first route that matches."""
    at_path = [route for route in routes if route.matches(request.scope)[0] is not Match.NONE]
    if literal := [route for route in at_path if route.path == request.url.path]:
        at_path = literal  # /v1/benchmarks/suites is not the id of a benchmark
    verbs = {verb for route in at_path for verb in route.methods or ()}
    return ", ".join(sorted(verbs | {"HEAD"} if "GET" in verbs else verbs))


def invalid_field(problems: Sequence[Mapping[str, Any]], body: Any) -> InvalidField:
    """The first problem that pydantic found, in terms of the request's own fields."""
    problem = _first(problems, body)
    param = path_of(_place(problem, body)) or None
    subject = shown(param) if param else "the body"
    limit = _limit(problem.get("ctx", {}))
    match problem["type"]:
        case "missing":
            return InvalidField(f"{subject} is required", code="missing_field", param=param)
        case "extra_forbidden":
            return InvalidField(
                f"{subject} is not a known field", code="unknown_field", param=param
            )
    given = problem["input"]
    message = f"{subject}: {_reason(problem)}, got {named(given)}"
    return InvalidField(message, param=param, limit=limit, actual=actual_of(given))


def _reason(problem: Mapping[str, Any]) -> str:
    """What pydantic says, in words of JSON."""
    reason: str = problem["msg"]
    match problem["type"], problem["input"]:
        case "model_attributes_type" | "model_type" | "dict_type", _:
            return "input should be an object"
        case (("int_type" | "int_from_float"), float() as number) if abs(number) >= 2**63:
            return "input should be an integer of at most 64 bits"
    return reason[:1].lower() + reason[1:]


def _first(problems: Sequence[Mapping[str, Any]], body: Any) -> Mapping[str, Any]:
    """The first problem; where a value may be one of several kinds, that of the kind which fits
    best: the one that was read furthest."""
    first = problems[0]
    place = _place(first, body)
    if len(place) + 1 == len(first["loc"]):
        return first
    alike = [one for one in problems if _place(one, body)[: len(place)] == place]
    return max(alike, key=lambda one: len(_place(one, body)))


def _place(problem: Mapping[str, Any], body: Any) -> Sequence[str | int]:
    """Where in the request it is. pydantic also names the kinds that it tried: ("documents", 0,
    "str")."""
    location: Sequence[str | int] = problem["loc"][1:]
    if problem["loc"][0] != "body":
        return location
    place: list[str | int] = []
    value = body
    for part in location:
        is_there = isinstance(value, dict) and part in value
        if is_there or (isinstance(value, list) and isinstance(part, int)):
            value = value[part]
            place.append(part)
    return [*place, location[-1]] if problem["type"] == "missing" else place


def _limit(context: dict[str, Any]) -> Quantity | None:
    for name in ("le", "lt", "ge", "gt", "max_length", "min_length", "expected"):
        if name in context:
            limit: Quantity = context[name]
            return limit
    return None
