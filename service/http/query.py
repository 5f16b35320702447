"""The query string of a request, read as strictly as a body."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from urllib.parse import parse_qsl

from fastapi.routing import APIRoute
from starlette.requests import Request

from engine.errors import shown
from service.errors import InvalidField, UnreadableBody


def check_query(request: Request) -> None:
    """Raises for what the framework passes over: a field given twice, of which it takes the last,
    and bytes that are not UTF-8, which it replaces."""
    query: bytes = request.scope["query_string"]
    try:
        pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True, errors="strict")
    except UnicodeDecodeError as error:
        raise UnreadableBody(
            f"the query string is not UTF-8: byte {error.object[error.start]:#04x}",
            code="invalid_utf8",
        ) from None
    for name, count in Counter(name for name, _ in pairs).items():
        if count > 1:
            raise InvalidField(
                f"{name} is in the query string {count} times",
                code="repeated_field",
                param=name,
                limit=1,
                actual=count,
            )


async def query_checked(request: Request) -> None:
    """The same, as a dependency of routes: one that is not async would run in a thread."""
    check_query(request)


async def query_known(request: Request) -> None:
    """Raises for a field that the route does not have, which the framework passes over.

    For our own routes alone: clients of other vendors add fields that only those vendors know.
    """
    route: APIRoute = request.scope["route"]
    known = [field.alias for field in route.dependant.query_params]
    for name in request.query_params:
        if name not in known:
            raise InvalidField(
                f"{shown(name)} is not a field of this query, which has {_listed(known)}",
                code="unknown_field",
                param=shown(name),
                limit=_listed(known),
                actual=shown(name),
            )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"
