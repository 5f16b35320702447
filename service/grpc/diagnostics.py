"""lln.v1.Diagnostics: what each attention head does with a text."""

from __future__ import annotations

from dataclasses import asdict

from engine.diagnostics.listing import instrument_infos
from engine.engine import AsyncEngine
from service.grpc.conversions import model_name
from service.grpc.deadlines import seconds_left
from service.grpc.diagnosis_messages import (
    attention_map_message,
    diagnosis_message,
    map_options,
)
from service.grpc.record import current_record
from service.grpc.status import Context
from service.pb.lln.v1 import diagnostics_pb2 as pb
from service.settings import Settings


class DiagnosticsServicer:
    def __init__(self, engine: AsyncEngine, settings: Settings) -> None:
        self._engine = engine
        self._settings = settings

    async def Diagnose(self, request: pb.DiagnoseRequest, context: Context) -> pb.DiagnoseResponse:
        diagnosis = await self._engine.diagnose(
            request.text,
            model=model_name(request),
            layers=list(request.layers) or None,
            heads=list(request.heads) or None,
            instruments=list(request.instruments) or None,
            mode=request.mode if request.HasField("mode") else "auto",
            timeout_s=seconds_left(context, self._settings),
        )
        current_record.get().add(diagnosis.model, diagnosis.tokens)
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
        current_record.get().add(found.model, found.tokens)
        return await attention_map_message(found)

    async def ListInstruments(
        self, request: pb.ListInstrumentsRequest, context: Context
    ) -> pb.ListInstrumentsResponse:
        infos = (pb.InstrumentInfo(**asdict(one)) for one in instrument_infos())
        return pb.ListInstrumentsResponse(instruments=infos)
