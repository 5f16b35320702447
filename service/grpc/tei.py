"""tei.v1: text-embeddings-inference's services, so that its clients work."""

from __future__ import annotations

import time
from collections.abc import AsyncIterable, Awaitable, Callable
from functools import partial
from typing import TypeAlias, TypeVar

from engine.engine import AsyncEngine
from engine.errors import EngineUnavailable, LLNError
from engine.types import Embedding, EmbedOptions, Truncate
from service.errors import InvalidField
from service.grpc.calls import Undecodable, decoded
from service.grpc.deadlines import seconds_left
from service.grpc.listeners import Listeners
from service.grpc.record import current_record
from service.grpc.status import Context, write
from service.grpc.streams import MAX_IN_FLIGHT, answer_in_order
from service.params import input_told_as
from service.pb.tei.v1 import tei_pb2 as pb
from service.settings import Settings
from service.turns import in_turns
from service.version import version_of

RequestT = TypeVar("RequestT", pb.EmbedRequest, pb.EmbedAllRequest)
Request: TypeAlias = pb.EmbedRequest | pb.EmbedAllRequest
Answer: TypeAlias = pb.EmbedResponse | pb.EmbedAllResponse

_DROPPED_END: dict[int, Truncate] = {
    pb.TRUNCATION_DIRECTION_RIGHT: "end",
    pb.TRUNCATION_DIRECTION_LEFT: "start",
}


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


class TeiEmbedServicer:
    def __init__(self, engine: AsyncEngine, settings: Settings, listeners: Listeners) -> None:
        self._engine = engine
        self._settings = settings
        self._listeners = listeners

    async def Embed(self, request: pb.EmbedRequest, context: Context) -> pb.EmbedResponse:
        return await self._vector(request, seconds_left(context, self._settings))

    async def EmbedStream(
        self, requests: AsyncIterable[pb.EmbedRequest | Undecodable], context: Context
    ) -> None:
        await self._stream(requests, partial(self._vector, patient=True), context)

    async def EmbedAll(self, request: pb.EmbedAllRequest, context: Context) -> pb.EmbedAllResponse:
        return await self._states(request, seconds_left(context, self._settings))

    async def EmbedAllStream(
        self, requests: AsyncIterable[pb.EmbedAllRequest | Undecodable], context: Context
    ) -> None:
        await self._stream(requests, partial(self._states, patient=True), context)

    async def _vector(
        self, request: pb.EmbedRequest, timeout_s: float, *, patient: bool = False
    ) -> pb.EmbedResponse:
        options = EmbedOptions(
            prompt_name=request.prompt_name if request.HasField("prompt_name") else None,
            dimensions=request.dimensions if request.HasField("dimensions") else None,
            normalize=request.normalize if request.HasField("normalize") else True,
            truncate=_truncate(request),
        )
        arrived_at = time.perf_counter()
        with input_told_as("inputs", lone=True):
            [found] = await self._engine.embed(
                [request.inputs], options=options, timeout_s=timeout_s, patient=patient
            )
        self._count(found)
        return pb.EmbedResponse(
            embeddings=found.vector.ravel(), metadata=_metadata(request, found, arrived_at)
        )

    async def _states(
        self, request: pb.EmbedAllRequest, timeout_s: float, *, patient: bool = False
    ) -> pb.EmbedAllResponse:
        options = EmbedOptions(
            prompt_name=request.prompt_name if request.HasField("prompt_name") else None,
            normalize=False,
            truncate=_truncate(request),
        )
        arrived_at = time.perf_counter()
        with input_told_as("inputs", lone=True):
            [found] = await self._engine.embed_tokens(
                [request.inputs], options=options, timeout_s=timeout_s, patient=patient
            )
        self._count(found)
        response = pb.EmbedAllResponse()
        async for state in in_turns(found.vector):
            response.token_embeddings.add(embeddings=state.tolist())
        response.metadata.CopyFrom(_metadata(request, found, arrived_at))
        return response

    def _count(self, found: Embedding) -> None:
        model = self._engine.resolve(None).name  # the contract knows no other
        current_record.get().add(model, found.accounting.tokens_embedded)

    async def _stream(
        self,
        requests: AsyncIterable[RequestT | Undecodable],
        embed: Callable[[RequestT, float], Awaitable[Answer]],
        context: Context,
    ) -> None:
        """Answers in order. The contract has no place for the error of one item, so the first
        ends the stream, once all before it are answered."""

        async def answer(request: RequestT | Undecodable) -> Answer | LLNError:
            try:
                return await embed(decoded(request), seconds_left(context, self._settings))
            except LLNError as error:
                return error

        async def write_or_end(answer: Answer | LLNError) -> None:
            if isinstance(answer, LLNError):
                raise answer
            await write(context, answer, within_s=self._settings.request_timeout_s)

        finished = await answer_in_order(
            requests,
            answer=answer,
            write=write_or_end,
            listeners=self._listeners,
            max_in_flight=MAX_IN_FLIGHT,
            max_silence_s=self._settings.body_timeout_s,
        )
        if not finished:
            raise EngineUnavailable("the server is stopping; all requests it had read are answered")


def _truncate(request: Request) -> Truncate:
    direction = request.truncation_direction
    if direction not in _DROPPED_END:
        raise InvalidField(
            f"truncation_direction is {direction}, which is none of "
            f"{', '.join(pb.TruncationDirection.keys())}",
            param="truncation_direction",
            actual=direction,
        )
    return _DROPPED_END[direction] if request.truncate else "error"


def _metadata(request: Request, found: Embedding, arrived_at: float) -> pb.Metadata:
    cost = found.accounting
    return pb.Metadata(
        compute_chars=len(request.inputs),
        compute_tokens=cost.tokens_embedded,
        total_time_ns=_nanoseconds(time.perf_counter() - arrived_at),
        queue_time_ns=_nanoseconds(cost.queue_s),
        inference_time_ns=_nanoseconds(cost.compute_s),
    )


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
