"""Logs: one JSON object a line, and one access line a request."""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2

from service.grpc.handlers import _address_of
from service.logs import JsonFormatter, TextFormatter, current_request_id, request_id_from
from service.pb.lln.v1 import (
    diagnostics_pb2,
    embeddings_pb2,
    models_pb2,
)
from service.pb.tei.v1 import tei_pb2
from tests.service.stubs import (
    MODEL,
    diagnostics_stub,
    embeddings_stub,
    health_stub,
    models_stub,
    tei_stub,
)


@pytest.fixture
def request_id() -> Iterator[str]:
    token = current_request_id.set("trace-42")
    yield "trace-42"
    current_request_id.reset(token)


def record(message: str, **fields: object) -> logging.LogRecord:
    made = logging.LogRecord("service.test", logging.INFO, __file__, 1, message, (), None)
    made.fields = fields
    return made


def test_json_line(request_id: str) -> None:
    line = json.loads(JsonFormatter().format(record("request", status=200, place=Path("/tmp"))))
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "info",
        "logger": "service.test",
        "event": "request",
        "request_id": request_id,
        "status": 200,
        "place": "/tmp",
    }


def test_a_line_without_request_and_fields() -> None:
    made = logging.LogRecord("uvicorn", logging.WARNING, __file__, 1, "a %s", ("word",), None)
    assert json.loads(JsonFormatter().format(made))["event"] == "a word"


def test_exceptions_stay_in_their_line() -> None:
    try:
        raise ValueError("of a kind")
    except ValueError as error:
        made = record("failed")
        made.exc_info = (ValueError, error, error.__traceback__)
    text = JsonFormatter().format(made)
    assert "\n" not in text
    assert "ValueError: of a kind" in json.loads(text)["exception"]


def test_text_line(request_id: str) -> None:
    line = TextFormatter().format(record("request", status=200))
    assert line.endswith(f"info    request request_id={request_id} status=200")


@pytest.mark.parametrize("offered", ["a", "req_1/2:3=4@5+6-7.8", "f" * 128])
def test_safe_request_ids_are_used(offered: str) -> None:
    assert request_id_from(offered) == offered


@pytest.mark.parametrize("offered", [None, "", "a b", "a\nb", "ü", "f" * 129, '"'])
def test_other_request_ids_are_replaced(offered: str | None) -> None:
    made = request_id_from(offered)
    assert made != offered
    assert request_id_from(made) == made
    assert request_id_from(offered) != made


TEXT = "The cat sat on the mat."
TOKENS = 9


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


def logged(line: dict[str, Any]) -> tuple[Any, ...]:
    return line["code"], line.get("model"), line.get("tokens"), line["peer"]


def test_http(server: Any, http: httpx.Client) -> None:
    http.post("/v1/embeddings", json={"input": [TEXT, TEXT]}, headers={"x-request-id": "log-http"})
    assert logged(line_of(server, "log-http")) == ("ok", "default", 2 * TOKENS, "127.0.0.1")


@pytest.mark.skipif(not socket.has_ipv6, reason="this machine has no IPv6")
def test_the_addresses_that_a_server_tells_can_be_connected_to(start_server: Any) -> None:
    server = start_server(LLN_MODELS=MODEL, LLN_HTTP_HOST="::", LLN_GRPC_PORT="0")
    lines = map(json.loads, server.log().splitlines())
    told = next(line for line in lines if line["event"] == "serving")
    assert httpx.get(f"{told['http']}/health/live").status_code == 200
    with grpc.insecure_channel(told["grpc"]) as channel:
        assert health_stub(channel).Check(health_pb2.HealthCheckRequest()).status


def test_an_update_counts_what_was_read(server: Any, http: httpx.Client) -> None:
    first = http.post("/v1/documents", json={"text": TEXT, "record": True}).json()
    update = {"record": first["record"], "text": TEXT}
    http.patch("/v1/documents", json=update, headers={"x-request-id": "log-update"})
    assert logged(line_of(server, "log-update")) == ("ok", "default", 0, "127.0.0.1")


@pytest.mark.parametrize(("said", "peer"), [("10.0.0.7", "10.0.0.7"), ("anything at all", None)])
def test_the_peer_is_the_address_that_a_local_proxy_reports(
    server: Any, http: httpx.Client, said: str, peer: str | None
) -> None:
    request_id = f"log-{said.replace(' ', '-')}"
    http.get("/v1/models", headers={"x-request-id": request_id, "x-forwarded-for": said})
    assert line_of(server, request_id).get("peer") == peer


def embed(channel: grpc.Channel, metadata: Any) -> None:
    stub = embeddings_stub(channel)
    text = embeddings_pb2.Input(text=TEXT)
    stub.Embed(embeddings_pb2.EmbedRequest(input=[text] * 2), metadata=metadata)


def embed_stream(channel: grpc.Channel, metadata: Any) -> None:
    stub = embeddings_stub(channel)
    request = embeddings_pb2.EmbedStreamRequest(input=embeddings_pb2.Input(text=TEXT))
    list(stub.EmbedStream(iter([request] * 2), metadata=metadata))


def embed_document(channel: grpc.Channel, metadata: Any) -> None:
    stub = embeddings_stub(channel)
    request = embeddings_pb2.EmbedDocumentRequest(
        open=embeddings_pb2.DocumentOptions(), text=TEXT.encode()
    )
    list(stub.EmbedDocument(iter([request]), metadata=metadata))


def tei_embed(channel: grpc.Channel, metadata: Any) -> None:
    stub = tei_stub(channel)
    stub.Embed(tei_pb2.EmbedRequest(inputs=TEXT), metadata=metadata)


def tokenize(channel: grpc.Channel, metadata: Any) -> None:
    stub = models_stub(channel)
    stub.Tokenize(models_pb2.TokenizeRequest(text=TEXT), metadata=metadata)


def diagnose(channel: grpc.Channel, metadata: Any) -> None:
    stub = diagnostics_stub(channel)
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
    assert logged(line_of(server, request_id)) == ("ok", "default", tokens, "127.0.0.1")


def test_a_call_without_texts(server: Any, channel: grpc.Channel) -> None:
    stub = models_stub(channel)
    stub.List(models_pb2.ListModelsRequest(), metadata=[("x-request-id", "log-list")])
    assert logged(line_of(server, "log-list")) == ("ok", None, None, "127.0.0.1")


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:10.0.0.7:4711", "10.0.0.7"),
        ("ipv6:%5B::1%5D:4711", "::1"),
        ("ipv6:[fe80::1%25eth0]:4711", "fe80::1%eth0"),
    ],
)
def test_the_address_of_a_peer(peer: str, address: str) -> None:
    assert _address_of(peer) == address
