"""lln.v1.Models: what is loaded, and how it reads text."""

from __future__ import annotations

from engine.engine import AsyncEngine
from service.grpc.conversions import (
    model_message,
    model_name,
    plan_message,
    plan_size,
    tokenization_message,
)
from service.grpc.status import Context
from service.params import input_told_as
from service.pb.lln.v1 import models_pb2 as pb


class ModelsServicer:
    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def List(self, request: pb.ListModelsRequest, context: Context) -> pb.ListModelsResponse:
        return pb.ListModelsResponse(models=map(model_message, self._engine.models.values()))

    async def Get(self, request: pb.GetModelRequest, context: Context) -> pb.Model:
        return model_message(self._engine.resolve(model_name(request)))

    async def Tokenize(self, request: pb.TokenizeRequest, context: Context) -> pb.TokenizeResponse:
        with input_told_as("text", lone=True):
            tokenization = await self._engine.tokenize(request.text, model=model_name(request))
        return tokenization_message(tokenization)

    async def Plan(self, request: pb.PlanRequest, context: Context) -> pb.PlanResponse:
        tokens, text = plan_size(request)
        with input_told_as("text", lone=True):
            plan = await self._engine.plan(tokens, text=text, model=model_name(request))
        return plan_message(plan)
