"""A line for each request, over both protocols with the same to say."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import grpc
import httpx
import pytest

from service.grpc.calls import _address
from service.pb.lln.v1 import (
    diagnostics_pb2,
    diagnostics_pb2_grpc,
    embeddings_pb2,
    embeddings_pb2_grpc,
    models_pb2,
    models_pb2_grpc,
)
from service.pb.tei.v1 import tei_pb2, tei_pb2_grpc

TEXT = "The cat sat on the mat."
TOKENS = 9


@pytest.fixture(scope="module")
def channel(server: Any) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(server.grpc_address) as channel:
        yield channel


def line_of(server: Any, request_id: str) -> dict[str, Any]:
    deadline = time.monotonic() + 10
    while True:
        lines = [line for line in server.log().splitlines() if f'"{request_id}"' in line]
        if lines:
            [line] = lines
            found: dict[str, Any] = json.loads(line)
            return found
        assert time.monotonic() < deadline
        time.sleep(0.05)


def told(line: dict[str, Any]) -> tuple[Any, ...]:
    return line["code"], line.get("model"), line.get("tokens"), line["peer"]


def test_http(server: Any, http: httpx.Client) -> None:
    http.post("/v1/embeddings", json={"input": [TEXT, TEXT]}, headers={"x-request-id": "log-http"})
    assert told(line_of(server, "log-http")) == ("ok", "default", 2 * TOKENS, "127.0.0.1")


@pytest.mark.parametrize(("said", "peer"), [("10.0.0.7", "10.0.0.7"), ("anything at all", None)])
def test_a_proxy_on_the_same_machine_is_believed_if_it_names_an_address(
    server: Any, http: httpx.Client, said: str, peer: str | None
) -> None:
    request_id = f"log-{said.replace(' ', '-')}"
    http.get("/v1/models", headers={"x-request-id": request_id, "x-forwarded-for": said})
    assert line_of(server, request_id).get("peer") == peer


def embed(channel: grpc.Channel, metadata: Any) -> None:
    stub: Any = embeddings_pb2_grpc.EmbeddingsStub(channel)  # type: ignore[no-untyped-call]
    text = embeddings_pb2.Input(text=TEXT)
    stub.Embed(embeddings_pb2.EmbedRequest(input=[text] * 2), metadata=metadata)


def embed_stream(channel: grpc.Channel, metadata: Any) -> None:
    stub: Any = embeddings_pb2_grpc.EmbeddingsStub(channel)  # type: ignore[no-untyped-call]
    request = embeddings_pb2.EmbedStreamRequest(input=embeddings_pb2.Input(text=TEXT))
    list(stub.EmbedStream(iter([request] * 2), metadata=metadata))


def embed_document(channel: grpc.Channel, metadata: Any) -> None:
    stub: Any = embeddings_pb2_grpc.EmbeddingsStub(channel)  # type: ignore[no-untyped-call]
    request = embeddings_pb2.EmbedDocumentRequest(
        open=embeddings_pb2.DocumentOptions(), text=TEXT.encode()
    )
    list(stub.EmbedDocument(iter([request]), metadata=metadata))


def tei_embed(channel: grpc.Channel, metadata: Any) -> None:
    stub: Any = tei_pb2_grpc.EmbedStub(channel)  # type: ignore[no-untyped-call]
    stub.Embed(tei_pb2.EmbedRequest(inputs=TEXT), metadata=metadata)


def tokenize(channel: grpc.Channel, metadata: Any) -> None:
    stub: Any = models_pb2_grpc.ModelsStub(channel)  # type: ignore[no-untyped-call]
    stub.Tokenize(models_pb2.TokenizeRequest(text=TEXT), metadata=metadata)


def diagnose(channel: grpc.Channel, metadata: Any) -> None:
    stub: Any = diagnostics_pb2_grpc.DiagnosticsStub(channel)  # type: ignore[no-untyped-call]
    request = diagnostics_pb2.DiagnoseRequest(text=TEXT, layers=[0], instruments=["entropy"])
    stub.Diagnose(request, metadata=metadata)


@pytest.mark.parametrize(
    ("call", "tokens"),
    [
        (embed, 2 * TOKENS),
        (embed_stream, 2 * TOKENS),
        (embed_document, TOKENS),
        (tei_embed, TOKENS),
        (tokenize, TOKENS),
        (diagnose, TOKENS),
    ],
)
def test_grpc(server: Any, channel: grpc.Channel, call: Any, tokens: int) -> None:
    request_id = f"log-{call.__name__}"
    call(channel, [("x-request-id", request_id)])
    assert told(line_of(server, request_id)) == ("ok", "default", tokens, "127.0.0.1")


def test_a_call_that_reads_nothing(server: Any, channel: grpc.Channel) -> None:
    stub: Any = models_pb2_grpc.ModelsStub(channel)  # type: ignore[no-untyped-call]
    stub.List(models_pb2.ListModelsRequest(), metadata=[("x-request-id", "log-list")])
    assert told(line_of(server, "log-list")) == ("ok", None, None, "127.0.0.1")


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:10.0.0.7:4711", "10.0.0.7"),
        ("ipv6:%5B::1%5D:4711", "::1"),
        ("ipv6:[fe80::1%25eth0]:4711", "fe80::1%eth0"),
    ],
)
def test_where_a_call_comes_from(peer: str, address: str) -> None:
    assert _address(peer) == address
