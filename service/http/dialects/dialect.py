"""What a vendor's file defines: its own routes, and its claims on paths that others have too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from service.http.errors import ErrorShape, own_shape
from service.http.json_handler import JsonHandler
from service.http.json_request import JsonRoute


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A path that several vendors share, and how to recognise this vendor's requests.

    A request is the vendor's if it has one of these fields, or if `is_theirs` says so.
    """

    path: str
    endpoint: Callable[..., Any]
    fields: frozenset[str] = frozenset()
    is_theirs: Callable[[Mapping[str, Any]], bool] = lambda _: False

    def covers(self, document: Mapping[str, Any]) -> bool:
        return not document.keys().isdisjoint(self.fields) or self.is_theirs(document)

    def handler(self) -> JsonHandler:
        route = JsonRoute(
            self.path, self.endpoint, methods=["POST"], response_class=Response, response_model=None
        )
        return route.json_handler()


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """One vendor's way to ask for what this server does."""

    name: str
    """As in LLN_DIALECTS."""
    router: APIRouter
    """Routes of paths that only this vendor has."""
    claims: tuple[Claim, ...] = ()
    error_shape: ErrorShape = own_shape
    open_paths: tuple[str, ...] = field(default=())
    """Probes, which need no key."""


class Dialects:
    """Those that are on: who answers a request, and how an error looks."""

    def __init__(
        self, dialects: Iterable[Dialect], shared_shapes: Mapping[str, ErrorShape]
    ) -> None:
        self.dialects = tuple(dialects)
        self._handlers: dict[str, list[tuple[Claim, JsonHandler]]] = {}
        self._shapes = dict(shared_shapes)
        for dialect in self.dialects:
            for claim in dialect.claims:
                self._handlers.setdefault(claim.path, []).append((claim, claim.handler()))
            for route in dialect.router.routes:
                self._shapes[route.path] = dialect.error_shape  # type: ignore[attr-defined]

    @property
    def open_paths(self) -> frozenset[str]:
        return frozenset(path for dialect in self.dialects for path in dialect.open_paths)

    def handler_for(self, path: str, document: Any) -> JsonHandler | None:
        """The handler of the first dialect that claims this body; None if it is ours."""
        claims = self._handlers.get(path)
        if claims is None or not isinstance(document, dict):
            return None
        return next((handler for claim, handler in claims if claim.covers(document)), None)

    def error_shape(self, path: str) -> ErrorShape:
        return self._shapes.get(path, own_shape)
