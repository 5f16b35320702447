"""Answers a batch's requests by the routes' own handlers, at background priority."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from pydantic import TypeAdapter
from starlette.responses import Response

from engine.async_engine import AsyncEngine
from engine.errors import EngineUnavailable, LLNError, QueueFull
from service.batches.answers import Answered
from service.batches.records import WINDOW_S
from service.errors import as_lln_error
from service.http.errors import error_response
from service.http.json_handler import validated
from service.http.json_response import whole_body
from service.http.middleware.observe import RequestRecord
from service.http.routes.documents import DocumentCall
from service.http.routes.embeddings import embeddings
from service.http.routes.ranking import rerank
from service.http.schemas.embedding import DocumentBody, EmbeddingsBody
from service.http.schemas.ranking import RankBody

log = logging.getLogger(__name__)

_AT_LOW_PRIORITY = {"priority": "background"}

Handle: TypeAlias = Callable[[Any, AsyncEngine, float, RequestRecord], Awaitable[Response]]


async def _document(
    body: DocumentBody, engine: AsyncEngine, timeout_s: float, record: RequestRecord
) -> Response:
    return await DocumentCall(engine, timeout_s, record).answer_body(body)


_HANDLERS: dict[str, tuple[TypeAdapter[Any], Handle]] = {
    "/v1/embeddings": (TypeAdapter(EmbeddingsBody), embeddings),
    "/v1/documents": (TypeAdapter(DocumentBody), _document),
    "/v1/rerank": (TypeAdapter(RankBody), rerank),
}


class BatchRequests:
    """A request may take as long as its batch, which ends it: it waits however long the queue is.
    The timeout of requests that somebody waits for says nothing of it."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def answer(self, endpoint: str, body: dict[str, Any], request_id: str) -> Answered:
        """Raises QueueFull or EngineUnavailable if there is no room for it now."""
        record = RequestRecord(request_id=request_id, started_at=0.0)
        try:
            response = await self._respond(endpoint, body, record)
        except (QueueFull, EngineUnavailable):
            raise
        except LLNError as error:
            response = error_response(error)
        except Exception as error:
            log.exception("a request of a batch failed")
            response = error_response(as_lln_error(error))
        return Answered(response.status_code, whole_body(response), record.tokens or 0, request_id)

    async def _respond(
        self, endpoint: str, body: dict[str, Any], record: RequestRecord
    ) -> Response:
        schema, handle = _HANDLERS[endpoint]
        request = validated(schema, body).model_copy(update=_AT_LOW_PRIORITY)
        return await handle(request, self._engine, WINDOW_S, record)
