"""tei.v1: the services of text-embeddings-inference, for its clients."""

from __future__ import annotations

import time
from collections.abc import AsyncIterable, Awaitable, Callable, Sequence
from itertools import chain
from typing import Protocol, TypeAlias

from google.protobuf.message import Message

from engine.async_engine import AsyncEngine
from engine.errors import LLNError
from engine.types import Accounting, Embedding, EmbedOptions, Truncate
from service.errors import InvalidField, report_input_as
from service.grpc.arrivals import Arrivals
from service.grpc.context import Context, timeout_s, write
from service.grpc.decoding import MessageT, Undecodable, decoded
from service.grpc.handlers import current_record
from service.grpc.parts import encoded
from service.grpc.streams import StreamTasks, answer_in_order
from service.pb.tei.v1 import tei_pb2 as pb
from service.settings import Settings
from service.version import version_of

Request: TypeAlias = pb.EmbedRequest | pb.EmbedAllRequest

_TRUNCATE: dict[int, Truncate] = {
    pb.TRUNCATION_DIRECTION_RIGHT: "end",
    pb.TRUNCATION_DIRECTION_LEFT: "start",
}


class HasTruncation(Protocol):
    """Any request with these two fields."""

    truncate: bool
    truncation_direction: pb.TruncationDirection


class TeiInfoServicer:
    def __init__(self, engine: AsyncEngine, settings: Settings) -> None:
        self._engine = engine
        self._settings = settings

    async def Info(self, request: pb.InfoRequest, context: Context) -> pb.InfoResponse:
        model, limits = self._engine.resolve(None), self._settings.engine
        return pb.InfoResponse(
            version=version_of("lln"),
            model_id=model.name,
            model_sha=model.revision,
            model_dtype=model.dtype,
            model_type=pb.MODEL_TYPE_EMBEDDING,
            max_concurrent_requests=self._settings.max_open_requests,
            max_input_length=model.max_tokens,
            max_batch_tokens=limits.batch_tokens_on(model.device.partition(":")[0]),
            max_batch_requests=limits.max_batch_sequences,
            max_client_batch_size=limits.max_inputs,
            tokenization_workers=limits.compute_threads,
        )


class StreamingServicer:
    """What TEI's services with streams of requests have in common."""

    def __init__(
        self, engine: AsyncEngine, settings: Settings, arrivals: Arrivals, stream_tasks: StreamTasks
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._arrivals = arrivals
        self._stream_tasks = stream_tasks

    async def _stream(
        self,
        requests: AsyncIterable[MessageT | Undecodable],
        answer: Callable[[MessageT], Awaitable[Message | bytes]],
        context: Context,
    ) -> None:
        """Answers in order. The API has no field for the error of one item, so the first error ends
        the stream once all requests before it are answered."""

        async def answer_or_error(request: MessageT | Undecodable) -> Message | bytes | LLNError:
            try:
                return await answer(decoded(request))
            except LLNError as error:
                return error

        async def write_or_end(found: Message | bytes | LLNError) -> None:
            if isinstance(found, LLNError):
                raise found
            await write(context, found, within_s=self._settings.request_timeout_s)

        await answer_in_order(
            requests,
            answer=answer_or_error,
            write=write_or_end,
            hold=self._arrivals.hold,
            stream_tasks=self._stream_tasks,
            idle_timeout_s=self._settings.body_timeout_s,
        )


class TeiEmbedServicer(StreamingServicer):
    async def Embed(self, request: pb.EmbedRequest, context: Context) -> pb.EmbedResponse:
        return await self._vector(request, timeout_s(context, self._settings))

    async def EmbedStream(
        self, requests: AsyncIterable[pb.EmbedRequest | Undecodable], context: Context
    ) -> None:
        def answer(request: pb.EmbedRequest) -> Awaitable[pb.EmbedResponse]:
            return self._vector(request, timeout_s(context, self._settings), wait_for_room=True)

        await self._stream(requests, answer, context)

    async def EmbedAll(self, request: pb.EmbedAllRequest, context: Context) -> bytes:
        return await self._states(request, timeout_s(context, self._settings))

    async def EmbedAllStream(
        self, requests: AsyncIterable[pb.EmbedAllRequest | Undecodable], context: Context
    ) -> None:
        def answer(request: pb.EmbedAllRequest) -> Awaitable[bytes]:
            return self._states(request, timeout_s(context, self._settings), wait_for_room=True)

        await self._stream(requests, answer, context)

    async def _vector(
        self, request: pb.EmbedRequest, timeout_s: float, *, wait_for_room: bool = False
    ) -> pb.EmbedResponse:
        options = EmbedOptions(
            prompt_name=request.prompt_name if request.HasField("prompt_name") else None,
            dimensions=request.dimensions if request.HasField("dimensions") else None,
            normalize=request.normalize if request.HasField("normalize") else True,
            truncate=truncation(request),
        )
        arrived_at = time.perf_counter()
        with report_input_as("inputs", lone=True):
            [found] = await self._engine.embed(
                [request.inputs], options=options, timeout_s=timeout_s, wait_for_room=wait_for_room
            )
        self._count(found)
        return pb.EmbedResponse(
            embeddings=found.vector.ravel(), metadata=_metadata(request, found, arrived_at)
        )

    async def _states(
        self, request: pb.EmbedAllRequest, timeout_s: float, *, wait_for_room: bool = False
    ) -> bytes:
        options = EmbedOptions(
            prompt_name=request.prompt_name if request.HasField("prompt_name") else None,
            normalize=False,
            truncate=truncation(request),
        )
        arrived_at = time.perf_counter()
        with report_input_as("inputs", lone=True):
            [found] = await self._engine.embed_tokens(
                [request.inputs], options=options, timeout_s=timeout_s, wait_for_room=wait_for_room
            )
        self._count(found)
        states = (
            pb.EmbedAllResponse(token_embeddings=[pb.TokenEmbedding(embeddings=state.tolist())])
            for state in found.vector
        )
        cost = pb.EmbedAllResponse(metadata=_metadata(request, found, arrived_at))
        return await encoded(chain(states, [cost]))

    def _count(self, found: Embedding) -> None:
        model = self._engine.resolve(None).name  # this API has no model field
        current_record.get().add(model, found.accounting.tokens_embedded)


def truncation(request: HasTruncation) -> Truncate:
    direction = request.truncation_direction
    if direction not in _TRUNCATE:
        known = ", ".join(pb.TruncationDirection.keys())
        raise InvalidField(
            f"truncation_direction must be one of {known}, got {direction}",
            param="truncation_direction",
            limit=known,
            actual=direction,
        )
    return _TRUNCATE[direction] if request.truncate else "error"


def _metadata(request: Request, found: Embedding, arrived_at: float) -> pb.Metadata:
    return metadata([found.accounting], len(request.inputs), arrived_at)


def metadata(costs: Sequence[Accounting], num_characters: int, arrived_at: float) -> pb.Metadata:
    """What a call cost: the longest wait and the longest computation of its texts."""
    return pb.Metadata(
        compute_chars=num_characters,
        compute_tokens=sum(cost.tokens_embedded + cost.tokens_alone for cost in costs),
        total_time_ns=_nanoseconds(time.perf_counter() - arrived_at),
        queue_time_ns=_nanoseconds(max(cost.queue_s for cost in costs)),
        inference_time_ns=_nanoseconds(max(cost.compute_s for cost in costs)),
    )


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
