"""Calls a handler with its parsed body and with whatever else it declares.

FastAPI's own resolver checks every request for generators, security schemes, forms and overrides.
No handler of a JSON body here has any, and the checks would take a large part of a short request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from inspect import isawaitable
from typing import Any

from fastapi import Request
from fastapi._compat import ModelField
from fastapi.dependencies.models import Dependant
from fastapi.dependencies.utils import request_params_to_args
from pydantic import TypeAdapter, ValidationError
from starlette.responses import Response

from engine.platform.turns import beside_others
from service.http.errors import invalid_field

_MAX_BYTES_AT_ONCE = 65_536
"""The event loop validates a body up to this size, in some 20 ms at most."""

_RESOLVED = frozenset(
    {"body_params", "dependencies", "header_params", "query_params", "request_param_name"}
)
_DESCRIPTIVE = frozenset({"name", "call", "use_cache", "path", "scope", "concurrency"})
_OTHERS = frozenset(field.name for field in fields(Dependant)) - _RESOLVED - _DESCRIPTIVE


@dataclass(frozen=True)
class _Call:
    """A function, and where its arguments come from."""

    function: Callable[..., Any]
    request: str | None
    """The name of the argument that is the request."""
    headers: tuple[tuple[str, str, Any], ...]
    """Names of arguments, the headers that they are, and their values without them."""
    query: Sequence[ModelField]
    results: tuple[tuple[str | None, _Call], ...]
    """Names of arguments, and the calls that return them; no name if only the call matters."""

    @classmethod
    def of(cls, dependant: Dependant) -> _Call:
        if declared := [name for name in _OTHERS if getattr(dependant, name)]:
            raise TypeError(
                f"{dependant.call} declares {', '.join(declared)}; handlers of JSON bodies have "
                f"headers, a query, the request and functions of these"
            )
        assert dependant.call is not None, "it is a route's or was given to Depends"
        return cls(
            dependant.call,
            dependant.request_param_name,
            tuple(_header(field) for field in dependant.header_params),
            dependant.query_params,
            tuple((one.name, cls.of(one)) for one in dependant.dependencies),
        )

    async def arguments(self, request: Request) -> dict[str, Any]:
        """Raises InvalidField for a field of the query that is not as declared."""
        values: dict[str, Any] = {}
        for name, call in self.results:
            value = await call.result(request)
            if name is not None:
                values[name] = value
        if self.request is not None:
            values[self.request] = request
        for name, header, default in self.headers:
            values[name] = request.headers.get(header, default)
        if self.query:
            found, problems = request_params_to_args(self.query, request.query_params)
            if problems:
                raise invalid_field(problems, body=None)
            values |= found
        return values

    async def result(self, request: Request) -> Any:
        value = self.function(**await self.arguments(request))
        return await value if isawaitable(value) else value


def _header(field: ModelField) -> tuple[str, str, Any]:
    if field.field_info.annotation not in (str, str | None):
        raise TypeError(f"the header {field.alias} is declared as another type than str")
    return field.name, field.alias, field.get_default()


class JsonHandler:
    """Answers requests for one endpoint whose JSON is parsed already."""

    def __init__(self, dependant: Dependant) -> None:
        [body] = dependant.body_params
        self._body = body.name
        self._schema: TypeAdapter[Any] = TypeAdapter(body.field_info.annotation)  # type: ignore[arg-type]
        self._endpoint = _Call.of(dependant)

    async def __call__(self, request: Request, document: Any, num_bytes: int = 0) -> Response:
        """Raises InvalidField for a document that does not have the form of the body. One of many
        bytes may have tens of thousands of parts: the event loop does not wait for it."""
        arguments = await self._endpoint.arguments(request)
        validate = partial(validated, self._schema, document)
        is_long = num_bytes > _MAX_BYTES_AT_ONCE
        arguments[self._body] = await beside_others(validate) if is_long else validate()
        response: Response = await self._endpoint.function(**arguments)
        return response


def validated(schema: TypeAdapter[Any], document: Any) -> Any:
    """The document in the form of a body. Raises InvalidField for the first that is wrong in it."""
    try:
        return schema.validate_python(document)
    except ValidationError as error:
        found = error.errors(include_url=False)
        problems = [{**one, "loc": ("body", *one["loc"])} for one in found]
        raise invalid_field(problems, document) from error
