"""lln.v1.Embeddings: a batch, a stream of texts answered in order, and a document in pieces."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterable, AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TypeAlias

from engine.async_engine import AsyncEngine
from engine.errors import EngineUnavailable, LLNError
from engine.scheduling.deadline import Deadline
from service.documents import DocumentRequest, Event, stream_document
from service.errors import InvalidField, as_lln_error
from service.fairness import read_by_then, receive_within
from service.grpc.answers import document_event, embedding_message
from service.grpc.arrivals import Arrivals
from service.grpc.context import Context, timeout_s, write
from service.grpc.decoding import Undecodable, decode_each, decoded
from service.grpc.errors import error_message
from service.grpc.handlers import current_record
from service.grpc.living import Arrived, answer_living, arrived, check_without_record, has_record
from service.grpc.parts import encoded
from service.grpc.requests import chunking, embed_options, model_name, text_inputs
from service.grpc.streams import StreamTasks, answer_in_order
from service.grpc.vectors import VectorPacker
from service.pb.lln.v1 import embeddings_pb2 as pb
from service.settings import Settings

log = logging.getLogger(__name__)

StreamRequest: TypeAlias = pb.EmbedStreamRequest | Undecodable
DocumentPiece: TypeAlias = pb.EmbedDocumentRequest | Undecodable


class EmbeddingsServicer:
    def __init__(
        self, engine: AsyncEngine, settings: Settings, arrivals: Arrivals, stream_tasks: StreamTasks
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._arrivals = arrivals
        self._stream_tasks = stream_tasks

    async def Embed(self, request: pb.EmbedRequest, context: Context) -> bytes:
        record = current_record.get()
        info = self._engine.resolve(model_name(request))
        record.model = info.name
        packer = VectorPacker.of(request.options, info)
        embeddings = await self._engine.embed(
            text_inputs(request.input),
            model=model_name(request),
            options=embed_options(request.options),
            timeout_s=timeout_s(context, self._settings),
        )
        record.add(info.name, sum(found.accounting.tokens_embedded for found in embeddings))
        messages = (embedding_message(embedding, packer) for embedding in embeddings)
        parts = (pb.EmbedResponse(embeddings=[message]) for message in messages)
        return await encoded(chain([pb.EmbedResponse(model=info.name)], parts))

    async def EmbedStream(self, requests: AsyncIterable[StreamRequest], context: Context) -> None:
        await answer_in_order(
            requests,
            answer=lambda request: self._answer(request, context),
            write=partial(write, context, within_s=self._settings.request_timeout_s),
            hold=self._arrivals.hold,
            stream_tasks=self._stream_tasks,
            idle_timeout_s=self._settings.body_timeout_s,
        )

    async def _answer(self, request: StreamRequest, context: Context) -> pb.EmbedStreamResponse:
        """Answers one request of a stream. An error becomes the answer; the stream continues."""
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
        info = self._engine.resolve(model_name(request))
        packer = VectorPacker.of(request.options, info)
        [embedding] = await self._engine.embed(
            text_inputs([request.input]),
            model=model_name(request),
            options=embed_options(request.options),
            timeout_s=timeout_s(context, self._settings),
            wait_for_room=True,  # a full queue is no error here: the stream is read more slowly
        )
        current_record.get().add(info.name, embedding.accounting.tokens_embedded)
        return embedding_message(embedding, packer)

    async def EmbedDocument(self, requests: AsyncIterable[DocumentPiece], context: Context) -> None:
        messages = decode_each(receive_within(requests, self._settings.body_timeout_s))
        first = await self._first_of(messages)
        info = self._engine.resolve(model_name(first.open))
        packer = VectorPacker.of(first.open.options, info)
        record = current_record.get()
        record.model = info.name
        request = DocumentRequest(
            model=info.name,
            options=embed_options(first.open.options),
            chunking=await chunking(first.open.chunking),
            title=first.open.title if first.open.HasField("title") else None,
            timeout_s=timeout_s(context, self._settings),
            vector=not first.open.HasField("vector") or first.open.vector,
        )
        if has_record(first):
            deadline = Deadline(request.timeout_s)
            with self._arrivals.hold_pieces() as count:
                document = await self._arrived(first, messages, count, request.timeout_s)
                left = replace(request, timeout_s=max(deadline.left_s or 0.0, 0.0))
                with deadline.as_a_whole():
                    living = await answer_living(
                        self._engine, left, first.open, document, context, packer
                    )
            record.add(request.model, living.tokens_read)
            return

        check_without_record(first.open)

        async def send(event: Event) -> None:
            await write(context, document_event(event, packer))

        with self._arrivals.hold_pieces() as count:
            found = await stream_document(
                self._engine,
                request,
                _texts(first, messages, count),
                send,
                result_model=request.model,
                run_reader=self._stream_tasks.run,
            )
        record.add(request.model, found.accounting.tokens_embedded)

    async def _arrived(
        self,
        first: pb.EmbedDocumentRequest,
        messages: AsyncIterator[pb.EmbedDocumentRequest],
        count: Callable[[int], None],
        timeout_s: float,
    ) -> Arrived:
        """The whole document and its record, unless the server stops meanwhile."""
        found: list[Arrived] = []

        async def read() -> None:
            limit = self._settings.max_body_bytes
            async with read_by_then(timeout_s):
                found.append(await arrived(first, messages, max_bytes=limit, count=count))

        if not await self._stream_tasks.run(read()):
            raise EngineUnavailable("the server is stopping and did not read the whole document")
        return found[0]

    async def _first_of(
        self, messages: AsyncIterator[pb.EmbedDocumentRequest]
    ) -> pb.EmbedDocumentRequest:
        first = None

        async def read() -> None:
            nonlocal first
            first = await anext(messages, None)

        if not await self._stream_tasks.run(read()):
            raise EngineUnavailable("the server is stopping and did not read the document")
        if first is None or not first.HasField("open"):
            raise InvalidField(
                "the first message of a document must have the field open, which may be empty",
                code="missing_field",
                param="open",
            )
        return first


async def _texts(
    first: pb.EmbedDocumentRequest,
    others: AsyncIterable[pb.EmbedDocumentRequest],
    count: Callable[[int], None],
) -> AsyncIterator[bytes]:
    count(len(first.text))
    yield first.text
    async for message in others:
        if message.HasField("open"):
            raise InvalidField("only the first message may have the field open", param="open")
        if message.record:
            raise InvalidField(
                "a record begins in the first message of a document, or with_record is set there",
                code="late_record",
                param="record",
            )
        count(len(message.text))
        yield message.text
