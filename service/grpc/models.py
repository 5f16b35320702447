"""lln.v1.Models: the loaded models, how they tokenise a text, and what a text would cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import cast

from engine.async_engine import AsyncEngine
from engine.types import Context as ChunkContext
from engine.types import ModelInfo, Tokenization
from service.grpc.context import Context, timeout_s
from service.grpc.handlers import current_record
from service.grpc.parts import encoded
from service.grpc.requests import model_name
from service.pb.lln.v1 import models_pb2 as pb
from service.plans import planned
from service.settings import Settings


class ModelsServicer:
    def __init__(self, engine: AsyncEngine, settings: Settings) -> None:
        self._engine = engine
        self._settings = settings

    async def List(self, request: pb.ListModelsRequest, context: Context) -> pb.ListModelsResponse:
        return pb.ListModelsResponse(models=map(model_message, self._engine.models.values()))

    async def Get(self, request: pb.GetModelRequest, context: Context) -> pb.Model:
        return model_message(self._engine.resolve(model_name(request)))

    async def Tokenize(self, request: pb.TokenizeRequest, context: Context) -> bytes:
        record = current_record.get()
        record.model = self._engine.resolve(model_name(request)).name
        tokenization = await self._engine.tokenize(
            request.text,
            model=model_name(request),
            timeout_s=timeout_s(context, self._settings),
        )
        record.tokens = len(tokenization.ids)
        return await encoded(tokenization_parts(tokenization))

    async def Plan(self, request: pb.PlanRequest, context: Context) -> pb.PlanResponse:
        size = request.WhichOneof("size")
        plan = await planned(
            self._engine,
            tokens=request.tokens if size == "tokens" else None,
            text=request.text if size == "text" else None,
            context=cast(ChunkContext, request.context) if request.HasField("context") else None,
            vector=not request.HasField("vector") or request.vector,
            record=request.record if request.HasField("record") else None,
            model=model_name(request),
            timeout_s=timeout_s(context, self._settings),
        )
        current_record.get().add(plan.model, plan.tokens)
        return pb.PlanResponse(**asdict(plan))


def model_message(info: ModelInfo) -> pb.Model:
    return pb.Model(
        name=info.name,
        aliases=info.aliases,
        family=info.family,
        attention=info.attention,
        dim=info.dim,
        num_layers=info.num_layers,
        num_heads=info.num_heads,
        max_tokens=info.max_tokens,
        position_table=info.position_table,
        pooling=info.pooling,
        prompts=info.prompts,
        revision=info.revision,
        calibration=info.calibration,
        source=info.source,
        device=info.device,
        dtype=info.dtype,
        int8_range=info.int8_range,
        chunk_context=info.chunk_context,
    )


def tokenization_parts(found: Tokenization) -> Iterator[pb.TokenizeResponse]:
    for ids, tokens, starts, ends in found.parts():
        yield pb.TokenizeResponse(ids=ids, tokens=tokens, starts=starts, ends=ends)
