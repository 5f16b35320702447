"""One text at the door of a server, over both protocols."""

from __future__ import annotations

from typing import Any

import grpc
import httpx

from service.pb.lln.v1 import embeddings_pb2 as pb
from service.pb.lln.v1 import embeddings_pb2_grpc

SECRET_TEXT = "the launch code is swordfish"
MODEL = "sentence-transformers/all-MiniLM-L6-v2"


def embed(url: str, **headers: str) -> httpx.Response:
    body = {"input": SECRET_TEXT}
    return httpx.post(f"{url}/v1/embeddings", json=body, headers=headers, timeout=60)


def grpc_status(channel: grpc.Channel, *metadata: tuple[str, str]) -> Any:
    stub: Any = embeddings_pb2_grpc.EmbeddingsStub(channel)  # type: ignore[no-untyped-call]
    try:
        stub.Embed(pb.EmbedRequest(input=[pb.Input(text=SECRET_TEXT)]), metadata=metadata)
    except grpc.RpcError as error:
        return error
    return None
