"""POST /v1/documents: one long document as a vector, and as late chunks.

Callers send JSON, or plain text that is tokenised while it arrives: two routes with one path. The
answer is JSON, or a stream of events while the work continues.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Annotated, Required, TypedDict

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.routing import Match
from starlette.types import Scope

from engine.errors import InvalidInput
from engine.living_types import RecordPrecision
from engine.model.quantized import check_output_dtype
from engine.platform.turns import beside_others
from engine.types import DocumentChunks
from service.documents import (
    EVENT_NAMES,
    DocumentRequest,
    Event,
    LivingRequest,
    embed_document,
    embed_living,
    stream_document,
    stream_events,
)
from service.edits import apply_edits
from service.errors import report_params
from service.fairness import receive_within
from service.http.dependencies import Engine, Record, ServerSettings, TimeoutS
from service.http.document_answers import chunk_fields, event_fields, living_fields, own_vector
from service.http.json_request import JsonRoute
from service.http.json_response import (
    VectorForm,
    accounting,
    dump_list,
    json_response,
    server_timing,
    usage,
)
from service.http.media_types import (
    NDJSON,
    PLAIN_TEXT,
    media_type,
    require_utf8,
    wants_events,
)
from service.http.query import check_query, query_known
from service.http.records import decoded
from service.http.schemas.embedding import DocumentBody, DocumentQuery, UpdateBody
from service.http.schemas.responses.embedding import DocumentAnswer, LivingDocumentAnswer
from service.http.streaming import EventStream, SendEvent

router = APIRouter(route_class=JsonRoute, tags=["embeddings"])


class TextRoute(APIRoute):
    """A route for bodies of plain text. The next route of the same path takes all others."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if media_type(Headers(scope=scope)) != PLAIN_TEXT:
            return Match.NONE, {}
        return super().matches(scope)


class DocumentRoute(JsonRoute):
    """The route for all others: those of JSON, and what is refused."""

    other_types = (PLAIN_TEXT,)


class DocumentCall:
    """One call of either route, answered the same way."""

    def __init__(
        self,
        engine: Engine,
        timeout_s: TimeoutS,
        record: Record,
        accept: Annotated[
            str, Header(description=f"{NDJSON} for events while the work continues.")
        ] = "",
    ) -> None:
        self._engine = engine
        self._timeout_s = timeout_s
        self._record = record
        self._accept = accept

    async def answer(
        self, pieces: AsyncIterable[bytes | str], fields: DocumentBody | DocumentQuery
    ) -> Response:
        info, options = self._engine.resolve(fields.model), fields.options()
        model = self._record.model = info.name
        check_output_dtype(fields.output_dtype, options, info)
        with _reported(fields):
            chunking = fields.chunk_plan()
        request = DocumentRequest(
            model=model,
            options=options,
            chunking=chunking,
            title=fields.title,
            timeout_s=self._timeout_s,
            vector=fields.vector,
        )
        name = fields.model or model
        form = VectorForm(fields.output_dtype, fields.encoding_format, info)
        if not wants_events(self._accept):
            with _reported(fields):
                found = await embed_document(self._engine, request, pieces)
            self._record.tokens = found.accounting.tokens_embedded
            return await self._whole(found, name, form)

        async def work(send: SendEvent) -> None:
            with _reported(fields):
                found = await stream_document(
                    self._engine, request, pieces, _sender(send, form), result_model=name
                )
            self._record.tokens = found.accounting.tokens_embedded

        return EventStream(work, self._record, self._timeout_s)

    async def answer_body(self, body: DocumentBody) -> Response:
        """A document whose text is a field."""
        if body.record:
            return await self.answer_living(
                body,
                {
                    "text": body.text,
                    "precision": body.record_precision or "float32",
                    "fold": body.fold,
                    "vector": body.vector,
                },
            )
        for name, given in (("record_precision", body.record_precision), ("fold", body.fold)):
            if given:
                raise InvalidInput(
                    f"{name} is that of a record, and none is asked for; set record to true",
                    code="unknown_field",
                    param=name,
                    actual=given,
                )
        return await self.answer(_only(body.text), body)

    async def answer_living(self, body: DocumentBody | UpdateBody, known: KnownRecord) -> Response:
        """The same for a document with a record."""
        info, options = self._engine.resolve(body.model), body.options()
        self._record.model = info.name
        check_output_dtype(body.output_dtype, options, info)
        request = LivingRequest(
            model=info.name,
            options=options,
            chunking=body.chunk_plan(),
            title=body.title,
            timeout_s=self._timeout_s,
            **known,
        )
        name = body.model or info.name
        form = VectorForm(body.output_dtype, body.encoding_format, info)
        if not wants_events(self._accept):
            found = await embed_living(self._engine, request)
            self._record.tokens = found.tokens_read
            return await self._whole(found, name, form)

        async def work(send: SendEvent) -> None:
            found = await stream_events(
                partial(embed_living, self._engine, request),
                _sender(send, form),
                timeout_s=self._timeout_s,
                result_model=name,
            )
            self._record.tokens = found.tokens_read

        return EventStream(work, self._record, self._timeout_s)

    async def _whole(self, found: DocumentChunks, model: str, form: VectorForm) -> Response:
        document = {
            "object": "document_embedding",
            "model": model,
            "vector": own_vector(found, form),
            "chunks": await dump_list(chunk_fields(found.chunks, form)),
            "accounting": accounting(found.accounting),
            "usage": usage(found.accounting.tokens_embedded),
            **living_fields(found),
        }
        return json_response(document, headers=server_timing([found.accounting]))


Call = Annotated[DocumentCall, Depends()]


async def text_documents(
    request: Request,
    query: Annotated[DocumentQuery, Query()],
    call: Call,
    settings: ServerSettings,
) -> Response:
    """The body is the document's text; the other fields are in the query string."""
    require_utf8(request.headers)
    check_query(request)
    return await call.answer(receive_within(_body(request), settings.body_timeout_s), query)


router.add_api_route(
    "/v1/documents",
    text_documents,
    methods=["POST"],
    route_class_override=TextRoute,
    include_in_schema=False,  # OpenAPI has one route for a path; the next one documents both
)

_QUERY = DocumentQuery.model_json_schema()["properties"]


async def documents(request: Request, body: DocumentBody, call: Call) -> Response:
    """A vector of the whole document and, if requested, one of each chunk, computed in the context
    of the document. With `"vector": false`, those of the chunks alone.

    Send JSON, or the text alone as `text/plain` in UTF-8 with the other fields in the query string.
    A text body is tokenised while it arrives: you can stream it, up to the model's limit of tokens.
    A text that is cut into sentences or sections has at most 16,777,216 characters. No text has
    more than 4,194,304 characters in a row without a place where the tokenizer can stop.

    With `Accept: application/x-ndjson` the answer is a line of JSON for each event: `accepted`
    (tokens read so far), `progress` (`tokens_done`, `tokens_total`, `seconds_left`), `chunks` as
    they become final, and `result`; or `error`, if something fails after the first line.

    Characters are Unicode code points, counted from 0.
    """
    for name in request.query_params:
        raise InvalidInput(
            f"{name} is in the query string, which only a {PLAIN_TEXT} document uses; "
            "put the fields of a JSON document in its body",
            code="unknown_field",
            param=name,
        )
    return await call.answer_body(body)


router.add_api_route(
    "/v1/documents",
    documents,
    methods=["POST"],
    route_class_override=DocumentRoute,
    response_model=DocumentAnswer | LivingDocumentAnswer,
    summary="Embed one document",
    responses={200: {"content": {NDJSON: {}}}},
    openapi_extra={
        "parameters": [
            {"name": name, "in": "query", "schema": schema} for name, schema in _QUERY.items()
        ],
        "requestBody": {"content": {PLAIN_TEXT: {"schema": {"type": "string"}}}},
    },
)


@router.patch(
    "/v1/documents",
    dependencies=[Depends(query_known)],
    response_model=LivingDocumentAnswer,
    summary="Read a document on after a change",
    responses={200: {"content": {NDJSON: {}}}},
)
async def update_document(body: UpdateBody, call: Call) -> Response:
    """The document as it is now, from the record of how it was: only segments that changed are
    read. The answer has a new record; the old one stays valid.

    A chunk that was kept under the same headings has its old index (`previous`) and a bound that
    1 - cosine to a fresh reading keeps for 99 % of such chunks (`staleness`). `gone` lists the
    record's other chunks.
    """
    text = body.text
    if body.edits is not None:
        text = await beside_others(partial(apply_edits, text, body.edits))
    return await call.answer_living(
        body,
        {
            "text": text,
            "record": decoded(body.record),
            "max_staleness": body.max_staleness,
            "exact": body.exact,
        },
    )


class KnownRecord(TypedDict, total=False):
    """A document with a record, as each of its two routes finds it in its own body."""

    text: Required[str]
    record: bytes
    precision: RecordPrecision
    fold: bool
    vector: bool
    max_staleness: float | None
    exact: bool


def _reported(fields: DocumentBody | DocumentQuery) -> AbstractContextManager[None]:
    """A query string has the options of chunking beside its other fields."""
    is_query = isinstance(fields, DocumentQuery)
    return report_params(lambda param: param.removeprefix("chunking.") if is_query else param)


async def _only(text: str) -> AsyncIterator[str]:
    yield text


async def _body(request: Request) -> AsyncIterator[bytes]:
    async for piece in request.stream():
        yield piece


def _sender(send: SendEvent, form: VectorForm) -> Callable[[Event], Awaitable[None]]:
    async def send_event(event: Event) -> None:
        await send({"event": EVENT_NAMES[type(event)], **event_fields(event, form)})

    return send_event
