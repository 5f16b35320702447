"""lln.v1.Diagnostics: what each attention head does with a text."""

from __future__ import annotations

from engine.engine import AsyncEngine
from service.grpc.conversions import (
    attention_map_message,
    diagnosis_message,
    map_options,
    model_name,
)
from service.grpc.deadlines import seconds_left
from service.grpc.status import Context
from service.metrics import Metrics
from service.pb.lln.v1 import diagnostics_pb2 as pb
from service.settings import Settings


class DiagnosticsServicer:
    def __init__(self, engine: AsyncEngine, settings: Settings, metrics: Metrics) -> None:
        self._engine = engine
        self._settings = settings
        self._metrics = metrics

    async def Diagnose(self, request: pb.DiagnoseRequest, context: Context) -> pb.DiagnoseResponse:
        diagnosis = await self._engine.diagnose(
            request.text,
            model=model_name(request),
            layers=list(request.layers) or None,
            heads=list(request.heads) or None,
            instruments=list(request.instruments) or None,
            timeout_s=seconds_left(context, self._settings),
        )
        self._metrics.diagnosed(diagnosis)
        return diagnosis_message(diagnosis)

    async def AttentionMap(
        self, request: pb.AttentionMapRequest, context: Context
    ) -> pb.AttentionMapResponse:
        found = await self._engine.attention_map(
            request.text if request.HasField("text") else None,
            document=request.document if request.HasField("document") else None,
            model=model_name(request),
            options=map_options(request),
            timeout_s=seconds_left(context, self._settings),
        )
        return attention_map_message(found)
