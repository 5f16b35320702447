"""lln.v1.Models: what is loaded, and how it reads text."""

from __future__ import annotations

from engine.engine import AsyncEngine
from service.grpc.conversions import model_name
from service.grpc.deadlines import seconds_left
from service.grpc.model_messages import (
    model_message,
    plan_message,
    plan_size,
    tokenization_message,
)
from service.grpc.record import current_record
from service.grpc.status import Context
from service.pb.lln.v1 import models_pb2 as pb
from service.settings import Settings


class ModelsServicer:
    def __init__(self, engine: AsyncEngine, settings: Settings) -> None:
        self._engine = engine
        self._settings = settings

    async def List(self, request: pb.ListModelsRequest, context: Context) -> pb.ListModelsResponse:
        return pb.ListModelsResponse(models=map(model_message, self._engine.models.values()))

    async def Get(self, request: pb.GetModelRequest, context: Context) -> pb.Model:
        return model_message(self._engine.resolve(model_name(request)))

    async def Tokenize(self, request: pb.TokenizeRequest, context: Context) -> pb.TokenizeResponse:
        record = current_record.get()
        record.model = self._engine.resolve(model_name(request)).name
        tokenization = await self._engine.tokenize(
            request.text,
            model=model_name(request),
            timeout_s=seconds_left(context, self._settings),
        )
        record.tokens = len(tokenization.ids)
        return tokenization_message(tokenization)

    async def Plan(self, request: pb.PlanRequest, context: Context) -> pb.PlanResponse:
        tokens, text = plan_size(request)
        plan = await self._engine.plan(
            tokens,
            text=text,
            model=model_name(request),
            timeout_s=seconds_left(context, self._settings),
        )
        current_record.get().add(plan.model, plan.tokens)
        return plan_message(plan)
