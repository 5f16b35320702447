"""lln.v1.Embeddings: a batch at once, a stream of texts answered in order, a document in pieces."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterable, Coroutine
from functools import partial
from typing import Any, TypeAlias

from engine.engine import AsyncEngine
from engine.errors import EngineUnavailable, LLNError
from engine.types import DocumentEmbedding
from service.documents import DocumentRequest, Event, Tell, embed_pieces, stream_events
from service.errors import as_lln_error
from service.grpc.calls import Undecodable, decoded
from service.grpc.conversions import (
    chunking,
    document_event,
    embed_options,
    embedding_message,
    model_name,
    text_inputs,
    vector_format,
)
from service.grpc.deadlines import seconds_left
from service.grpc.document_pieces import DocumentPiece, DocumentPieces
from service.grpc.listeners import Listeners
from service.grpc.record import current_record
from service.grpc.status import Context, error_message, write
from service.grpc.streams import MAX_IN_FLIGHT, answer_in_order
from service.pb.lln.v1 import embeddings_pb2 as pb
from service.settings import Settings

log = logging.getLogger(__name__)

StreamRequest: TypeAlias = pb.EmbedStreamRequest | Undecodable


class EmbeddingsServicer:
    def __init__(self, engine: AsyncEngine, settings: Settings, listeners: Listeners) -> None:
        self._engine = engine
        self._settings = settings
        self._listeners = listeners

    async def Embed(self, request: pb.EmbedRequest, context: Context) -> pb.EmbedResponse:
        record = current_record.get()
        model = record.model = self._engine.resolve(model_name(request)).name
        form = vector_format(request.options)
        embeddings = await self._engine.embed(
            text_inputs(request.input),
            model=model,
            options=embed_options(request.options),
            timeout_s=seconds_left(context, self._settings),
        )
        record.add(model, sum(found.accounting.tokens_embedded for found in embeddings))
        messages = (embedding_message(embedding, form) for embedding in embeddings)
        return pb.EmbedResponse(model=model, embeddings=messages)

    async def EmbedStream(self, requests: AsyncIterable[StreamRequest], context: Context) -> None:
        finished = await answer_in_order(
            requests,
            answer=lambda request: self._answer(request, context),
            write=partial(write, context, within_s=self._settings.request_timeout_s),
            listeners=self._listeners,
            max_in_flight=MAX_IN_FLIGHT,
            max_silence_s=self._settings.body_timeout_s,
        )
        if not finished:
            raise EngineUnavailable("the server is stopping; all requests it had read are answered")

    async def EmbedDocument(self, requests: AsyncIterable[DocumentPiece], context: Context) -> None:
        reader = DocumentPieces(requests, self._listeners, self._settings.body_timeout_s)
        opening = await reader.opening()
        form = vector_format(opening.options)
        record = current_record.get()
        record.model = self._engine.resolve(model_name(opening)).name
        request = DocumentRequest(
            model=record.model,
            options=embed_options(opening.options),
            chunking=chunking(opening.chunking),
            timeout_s=seconds_left(context, self._settings),
        )

        def embed(tell: Tell) -> Coroutine[Any, Any, DocumentEmbedding]:
            pieces, listen = reader.pieces(), self._listeners.run
            return embed_pieces(self._engine, request, pieces, tell=tell, listen=listen)

        async def send(event: Event) -> None:
            await write(context, document_event(event, form))

        found = await stream_events(embed, request.model, send, timeout_s=request.timeout_s)
        record.add(request.model, found.accounting.tokens_embedded)

    async def _answer(self, request: StreamRequest, context: Context) -> pb.EmbedStreamResponse:
        """The answer to one item of a stream; whatever goes wrong with it is its answer."""
        response = pb.EmbedStreamResponse()
        try:
            message = decoded(request)
            response.id = message.id
            response.embedding.CopyFrom(await self._embed_one(message, context))
        except Exception as error:
            if not isinstance(error, LLNError):
                log.exception("item of a stream failed")
            response.error.CopyFrom(error_message(as_lln_error(error)))
        return response

    async def _embed_one(self, request: pb.EmbedStreamRequest, context: Context) -> pb.Embedding:
        """A stream can simply be read more slowly, so its texts wait where a call is refused."""
        form = vector_format(request.options)
        [embedding] = await self._engine.embed(
            text_inputs([request.input]),
            model=model_name(request),
            options=embed_options(request.options),
            timeout_s=seconds_left(context, self._settings),
            patient=True,
        )
        model = self._engine.resolve(model_name(request)).name
        current_record.get().add(model, embedding.accounting.tokens_embedded)
        return embedding_message(embedding, form)
