"""What is loaded, tokens and plans as protobuf messages."""

from __future__ import annotations

from dataclasses import asdict

from engine.types import ModelInfo, Plan, Tokenization
from service.pb.lln.v1 import models_pb2


def model_message(info: ModelInfo) -> models_pb2.Model:
    return models_pb2.Model(
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
    )


def tokenization_message(tokenization: Tokenization) -> models_pb2.TokenizeResponse:
    return models_pb2.TokenizeResponse(
        ids=tokenization.ids,
        tokens=tokenization.tokens,
        starts=(span.start for span in tokenization.offsets),
        ends=(span.end for span in tokenization.offsets),
    )


def plan_size(request: models_pb2.PlanRequest) -> tuple[int | None, str | None]:
    """The number of tokens or the text, whichever was sent."""
    size = request.WhichOneof("size")
    return (
        request.tokens if size == "tokens" else None,
        request.text if size == "text" else None,
    )


def plan_message(plan: Plan) -> models_pb2.PlanResponse:
    return models_pb2.PlanResponse(**asdict(plan))
