"""POST /v1/documents: one long document as a vector, and as late chunks.

The document comes as JSON, or as a body of plain text that is tokenised while it arrives. The
answer comes as JSON, or as events while the work goes on.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Coroutine, Iterable, Iterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.routing import Match
from starlette.types import Scope

from engine.errors import InvalidInput
from engine.types import Chunk, ChunksReady, DocumentEmbedding, Progress
from service.documents import (
    EVENT_NAMES,
    Accepted,
    DocumentRequest,
    Event,
    Tell,
    embed_pieces,
    stream_events,
)
from service.http.answers import DocumentAnswer
from service.http.dependencies import Engine, Record, ServerSettings, TimeoutS
from service.http.events import EventLines, SendLine
from service.http.incoming import STREAMED, media_type, refuse_other_charsets
from service.http.json import JsonRoute, dump_list, json_response
from service.http.media_types import NDJSON, wants_events
from service.http.schemas import DocumentBody, DocumentQuery, EncodingFormat
from service.http.vectors import accounting, encode_vector, server_timing, span, usage
from service.slow_callers import arriving

router = APIRouter(route_class=JsonRoute, tags=["embeddings"])


class TextRoute(APIRoute):
    """A route for bodies that are the text itself; others are left to the route after it."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if media_type(Headers(scope=scope)) != STREAMED:
            return Match.NONE, {}
        return super().matches(scope)


class DocumentCall:
    """One call of either route: how it is answered, however the document came."""

    def __init__(
        self,
        engine: Engine,
        timeout_s: TimeoutS,
        record: Record,
        accept: Annotated[
            str, Header(description=f"{NDJSON} for events while the work goes on.")
        ] = "",
    ) -> None:
        self._engine = engine
        self._timeout_s = timeout_s
        self._record = record
        self._accept = accept

    async def answer(
        self, pieces: AsyncIterable[bytes | str], fields: DocumentBody | DocumentQuery
    ) -> Response:
        model = self._record.model = self._engine.resolve(fields.model).name
        request = DocumentRequest(
            model=model,
            options=fields.options(),
            chunking=fields.chunk_plan(),
            timeout_s=self._timeout_s,
        )

        def embed(tell: Tell) -> Coroutine[Any, Any, DocumentEmbedding]:
            return embed_pieces(self._engine, request, pieces, tell=tell)

        name, encoding = fields.model or model, fields.encoding_format
        if not wants_events(self._accept):
            return await self._whole(await embed(lambda _: None), name, encoding)

        async def work(send_line: SendLine) -> None:
            async def send(event: Event) -> None:
                await send_line({"event": EVENT_NAMES[type(event)], **_fields(event, encoding)})

            found = await stream_events(embed, name, send, timeout_s=self._timeout_s)
            self._count(found)

        return EventLines(work, self._record, self._timeout_s)

    async def _whole(
        self, found: DocumentEmbedding, model: str, encoding: EncodingFormat
    ) -> Response:
        self._count(found)
        document = {
            "object": "document_embedding",
            "model": model,
            "vector": encode_vector(found.vector, encoding),
            "chunks": await dump_list(_chunks(found.chunks, encoding)),
            "accounting": accounting(found.accounting),
            "usage": usage(found.accounting.tokens_embedded),
        }
        return json_response(document, headers=server_timing([found.accounting]))

    def _count(self, found: DocumentEmbedding) -> None:
        self._record.tokens = found.accounting.tokens_embedded


Call = Annotated[DocumentCall, Depends()]


async def text_documents(
    request: Request,
    query: Annotated[DocumentQuery, Query()],
    call: Call,
    settings: ServerSettings,
) -> Response:
    """The body is the document's text; all else is in the query string."""
    refuse_other_charsets(request.headers)
    return await call.answer(arriving(_body(request), settings.body_timeout_s), query)


router.add_api_route(
    "/v1/documents",
    text_documents,
    methods=["POST"],
    route_class_override=TextRoute,
    include_in_schema=False,  # the page knows one route of a path; the next one speaks for both
)

_QUERY = DocumentQuery.model_json_schema()["properties"]


@router.post(
    "/v1/documents",
    response_model=DocumentAnswer,
    summary="Embed one document",
    responses={200: {"content": {NDJSON: {}}}},
    openapi_extra={
        "parameters": [
            {"name": name, "in": "query", "schema": schema} for name, schema in _QUERY.items()
        ],
        "requestBody": {"content": {STREAMED: {"schema": {"type": "string"}}}},
    },
)
async def documents(request: Request, body: DocumentBody, call: Call) -> Response:
    """A vector of the whole document and, if asked, one of each passage in its light.

    Send JSON, or the text alone as `text/plain` in UTF-8, with the other fields in the query
    string: it is tokenised as it arrives, so a chunked upload need not be held anywhere, and ends
    at the model's limit of tokens. A text to be cut into sentences or sections has 16,777,216
    characters at most, and none has more than 4,194,304 in a row without a place where the
    tokenizer can stop.

    With `Accept: application/x-ndjson` the answer is a line of JSON for each event: `accepted`
    (tokens read so far), `progress` (`tokens_done`, `tokens_total`, `seconds_left`), `chunks` as
    they become final, and `result`; or `error`, if something fails after the first line.

    Characters are Unicode code points, counted from 0.
    """
    for name in request.query_params:
        raise InvalidInput(
            f"{name} is in the query string, where only a document of {STREAMED} has fields; this "
            "one's belong in its body",
            code="unknown_field",
            param=name,
        )
    return await call.answer(_one(body.text), body)


async def _one(text: str) -> AsyncIterator[str]:
    yield text


async def _body(request: Request) -> AsyncIterator[bytes]:
    async for piece in request.stream():
        yield piece


def _fields(event: Event, encoding: EncodingFormat) -> dict[str, Any]:
    if isinstance(event, Accepted):
        return {"model": event.model, "tokens": event.tokens}
    if isinstance(event, Progress):
        return {
            "tokens_done": event.tokens_done,
            "tokens_total": event.tokens_total,
            "seconds_left": event.seconds_left,
        }
    if isinstance(event, ChunksReady):
        return {"chunks": list(_chunks(event.chunks, encoding))}
    found = event.embedding
    return {
        "model": event.model,
        "vector": encode_vector(found.vector, encoding),
        "num_chunks": len(found.chunks),
        "accounting": accounting(found.accounting),
        "usage": usage(found.accounting.tokens_embedded),
    }


def _chunks(chunks: Iterable[Chunk], encoding: EncodingFormat) -> Iterator[dict[str, Any]]:
    for chunk in chunks:
        yield {
            "index": chunk.index,
            "tokens": span(chunk.tokens),
            "characters": span(chunk.characters),
            "headings": chunk.headings,
            "vector": encode_vector(chunk.vector, encoding),
        }
