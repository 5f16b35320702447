"""Stubs of every gRPC service, typed as Any, since generated code has no types; and one text to
send over both protocols."""

from __future__ import annotations

from typing import Any

import grpc
import httpx
from grpc_health.v1 import health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2_grpc

from service.pb.lln.v1 import (
    benchmarks_pb2_grpc,
    diagnostics_pb2_grpc,
    embeddings_pb2_grpc,
    models_pb2_grpc,
)
from service.pb.lln.v1 import embeddings_pb2 as pb
from service.pb.tei.v1 import tei_pb2_grpc

SECRET_TEXT = "the launch code is swordfish"
MODEL = "sentence-transformers/all-MiniLM-L6-v2"


def embeddings_stub(channel: grpc.Channel) -> Any:
    return embeddings_pb2_grpc.EmbeddingsStub(channel)  # type: ignore[no-untyped-call]


def models_stub(channel: grpc.Channel) -> Any:
    return models_pb2_grpc.ModelsStub(channel)  # type: ignore[no-untyped-call]


def diagnostics_stub(channel: grpc.Channel) -> Any:
    return diagnostics_pb2_grpc.DiagnosticsStub(channel)  # type: ignore[no-untyped-call]


def benchmarks_stub(channel: grpc.Channel) -> Any:
    return benchmarks_pb2_grpc.BenchmarksStub(channel)  # type: ignore[no-untyped-call]


def tei_stub(channel: grpc.Channel) -> Any:
    return tei_pb2_grpc.EmbedStub(channel)  # type: ignore[no-untyped-call]


def tei_info_stub(channel: grpc.Channel) -> Any:
    return tei_pb2_grpc.InfoStub(channel)  # type: ignore[no-untyped-call]


def tei_rank_stub(channel: grpc.Channel) -> Any:
    return tei_pb2_grpc.RerankStub(channel)  # type: ignore[no-untyped-call]


def tei_tokens_stub(channel: grpc.Channel) -> Any:
    return tei_pb2_grpc.TokenizeStub(channel)  # type: ignore[no-untyped-call]


def health_stub(channel: grpc.Channel) -> Any:
    return health_pb2_grpc.HealthStub(channel)


def reflection_stub(channel: grpc.Channel) -> Any:
    return reflection_pb2_grpc.ServerReflectionStub(channel)


def embed(url: str, **headers: str) -> httpx.Response:
    body = {"input": SECRET_TEXT}
    return httpx.post(f"{url}/v1/embeddings", json=body, headers=headers, timeout=60)


def grpc_status(channel: grpc.Channel, *metadata: tuple[str, str]) -> Any:
    message = pb.EmbedRequest(input=[pb.Input(text=SECRET_TEXT)])
    try:
        embeddings_stub(channel).Embed(message, metadata=metadata)
    except grpc.RpcError as error:
        return error
    return None
