"""Keys, limits and headers of a real server, over both protocols."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2
from openai import AuthenticationError, OpenAI

from service.pb.lln.v1 import embeddings_pb2 as pb
from tests.service.stubs import MODEL, SECRET_TEXT, embed, embeddings_stub, grpc_status, health_stub

KEY = "a-key-of-the-settings-0123"
FILE_KEY = "a-key-of-the-file-0123456"


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("keys") / "keys"
    file.write_text(FILE_KEY)
    return file


@pytest.fixture(scope="module")
def guarded(launch_server: Any, key_file: Path) -> Any:
    """A server with keys from both sources, one allowed origin, and a key for metrics."""
    return launch_server(
        LLN_MODELS=MODEL,
        LLN_API_KEYS=KEY,
        LLN_API_KEYS_FILE=str(key_file),
        LLN_METRICS_NEED_KEY="true",
        LLN_CORS_ORIGINS="https://example.org",
        LLN_LOG_LEVEL="debug",
    )


def test_http_requires_a_key(guarded: Any) -> None:
    refused = embed(guarded.http_url)
    assert refused.status_code == 401
    assert refused.headers["www-authenticate"].startswith("Bearer")
    assert refused.json()["error"]["code"] == "missing_api_key"
    assert refused.json()["error"]["type"] == "authentication_error"
    wrong = embed(guarded.http_url, authorization="Bearer no-key-of-this-server")
    assert wrong.json()["error"]["code"] == "invalid_api_key"
    assert embed(guarded.http_url, authorization=f"Bearer {KEY}").status_code == 200
    assert embed(guarded.http_url, **{"x-api-key": FILE_KEY}).status_code == 200


def test_grpc_requires_a_key(guarded: Any) -> None:
    with grpc.insecure_channel(guarded.grpc_address) as channel:
        refused = grpc_status(channel)
        assert refused.code() == grpc.StatusCode.UNAUTHENTICATED
        assert ("lln-error-code", "missing_api_key") in refused.trailing_metadata()
        wrong = grpc_status(channel, ("x-api-key", "no-key-of-this-server"))
        assert wrong.code() == grpc.StatusCode.UNAUTHENTICATED
        assert grpc_status(channel, ("authorization", f"Bearer {KEY}")) is None
        assert grpc_status(channel, ("x-api-key", FILE_KEY)) is None


def test_both_protocols_refuse_two_keys_in_one_field(guarded: Any) -> None:
    good, bad = ("authorization", f"Bearer {KEY}"), ("authorization", "Bearer no-key-of-this-one")
    with grpc.insecure_channel(guarded.grpc_address) as channel:
        for headers in ([good, bad], [bad, good]):
            answer = httpx.get(f"{guarded.http_url}/v1/models", headers=headers)
            assert answer.status_code == 400
            error = answer.json()["error"]
            assert (error["code"], error["param"]) == ("repeated_header", "authorization")
            assert KEY not in answer.text
            refused = grpc_status(channel, *headers)
            assert refused.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert ("lln-error-code", "repeated_header") in refused.trailing_metadata()
        assert httpx.get(f"{guarded.http_url}/v1/models", headers=[good, good]).is_success
        assert grpc_status(channel, good, good) is None


def test_every_grpc_service_but_health_is_guarded(guarded: Any) -> None:
    with grpc.insecure_channel(guarded.grpc_address) as channel:
        for method in (
            "/lln.v1.Models/List",
            "/tei.v1.Info/Info",
            "/tei.v1.Embed/Embed",
            "/lln.v1.Diagnostics/Diagnose",
            "/no.such.Service/Call",
        ):
            with pytest.raises(grpc.RpcError) as raised:
                channel.unary_unary(method, None, None)(b"")
            error: Any = raised.value
            assert error.code() == grpc.StatusCode.UNAUTHENTICATED, method
        for version in ("v1", "v1alpha"):
            reflect = channel.stream_stream(
                f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo", None, None
            )
            with pytest.raises(grpc.RpcError) as raised:
                list(reflect(iter([b""])))
            error = raised.value
            assert error.code() == grpc.StatusCode.UNAUTHENTICATED, version
        health = health_stub(channel)
        assert health.Check(health_pb2.HealthCheckRequest()).status == 1
        with pytest.raises(grpc.RpcError) as raised:  # a method of a later release
            channel.unary_unary("/grpc.health.v1.Health/Later", None, None)(b"")
        error = raised.value
        assert error.code() == grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("path", ["/health", "/health/live", "/health/ready", "/docs", "/"])
def test_routes_without_a_key(guarded: Any, path: str) -> None:
    assert httpx.get(guarded.http_url + path).status_code in (200, 307)


@pytest.mark.parametrize("path", ["/metrics", "/info", "/v1/models", "/nowhere", "//docs"])
def test_routes_with_a_key(guarded: Any, path: str) -> None:
    assert httpx.get(guarded.http_url + path).status_code == 401


def test_openapi_describes_the_key(guarded: Any) -> None:
    document: dict[str, Any] = httpx.get(f"{guarded.http_url}/openapi.json").json()
    schemes = document["components"]["securitySchemes"]
    assert schemes["bearer"].items() >= {"type": "http", "scheme": "bearer"}.items()
    header = {"type": "apiKey", "in": "header", "name": "X-API-Key"}
    assert schemes["x_api_key"].items() >= header.items()
    assert document["security"] == [{"bearer": []}, {"x_api_key": []}]
    operations = [
        (verb, path, operation.get("security", document["security"]))
        for path, operations in document["paths"].items()
        for verb, operation in operations.items()
    ]
    assert {path for _, path, security in operations if security == []} == {
        *("/health", "/health/live", "/health/ready", "/ping")
    }
    for verb, path, security in operations:
        asks = httpx.request(verb, guarded.http_url + path).status_code == 401
        assert asks is bool(security), (verb, path)


def test_openapi_without_keys_names_no_scheme(http: httpx.Client) -> None:
    document = http.get("/openapi.json").json()
    assert "security" not in document
    assert "securitySchemes" not in document["components"]


def test_openais_client_with_a_key(guarded: Any) -> None:
    url = f"{guarded.http_url}/v1"
    answer = OpenAI(base_url=url, api_key=KEY).embeddings.create(model=MODEL, input="a text")
    assert len(answer.data[0].embedding) == 384
    with pytest.raises(AuthenticationError):
        OpenAI(base_url=url, api_key="wrong-" + KEY).embeddings.create(model=MODEL, input="x")


def test_a_key_is_rotated_without_a_restart(guarded: Any, key_file: Path) -> None:
    rotated = "another-key-0123456789"
    key_file.write_text(rotated)
    assert embed(guarded.http_url, **{"x-api-key": rotated}).status_code == 200
    assert embed(guarded.http_url, **{"x-api-key": FILE_KEY}).status_code == 401
    key_file.write_text(FILE_KEY)
    assert embed(guarded.http_url, **{"x-api-key": FILE_KEY}).status_code == 200


def test_revoking_a_key_ends_its_streams(guarded: Any, key_file: Path) -> None:
    answered = threading.Event()

    def requests() -> Iterator[pb.EmbedStreamRequest]:
        yield pb.EmbedStreamRequest(id="0", input=pb.Input(text="a"))
        assert answered.wait(30)
        key_file.write_text("another-key-0123456789")
        yield pb.EmbedStreamRequest(id="1", input=pb.Input(text="a"))

    with grpc.insecure_channel(guarded.grpc_address) as channel:
        stub = embeddings_stub(channel)
        answers = stub.EmbedStream(requests(), metadata=[("x-api-key", FILE_KEY)])
        assert next(answers).id == "0"
        answered.set()
        with pytest.raises(grpc.RpcError) as raised:
            next(answers)
        error: Any = raised.value
        assert error.code() == grpc.StatusCode.UNAUTHENTICATED
    key_file.write_text(FILE_KEY)


def test_a_body_is_not_read_without_a_key(guarded: Any) -> None:
    """Only the headers are sent: the rejection must not wait for the body."""
    host, port = guarded.http_url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(
            b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: 30000000\r\n"
            b"Content-Type: application/json\r\n\r\n"
        )
        assert connection.recv(64).startswith(b"HTTP/1.1 401")


def test_logs_contain_no_key_and_no_text(guarded: Any) -> None:
    url = guarded.http_url
    embed(url, authorization=f"Bearer {KEY}")
    embed(url, authorization=f"Bearer {KEY}wrong")
    with_key = {"x-api-key": KEY}
    for path, body in (
        ("/v1/embeddings", {"input": [SECRET_TEXT, ""]}),
        ("/v1/embeddings", {"input": SECRET_TEXT, "model": SECRET_TEXT}),
        ("/v1/embeddings", {"input": SECRET_TEXT, "prompt_name": SECRET_TEXT}),
        ("/v1/documents", {"text": SECRET_TEXT, "chunking": {"type": SECRET_TEXT}}),
        ("/v1/tokenize", {"text": SECRET_TEXT}),
        (f"/{SECRET_TEXT}?key={KEY}", {}),
    ):
        httpx.post(url + path, json=body, headers=with_key)
    httpx.post(f"{url}/v1/embeddings", content=b'{"input": "swordfish', headers=with_key)
    log = guarded.log()
    assert "POST /v1/embeddings" in log
    for secret in (KEY, FILE_KEY, "swordfish"):
        assert secret not in log


def test_pages_of_an_allowed_origin(guarded: Any) -> None:
    asking = {
        "origin": "https://example.org",
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
    }
    answer = httpx.options(f"{guarded.http_url}/v1/embeddings", headers=asking)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "https://example.org"
    refused = embed(guarded.http_url, origin="https://example.org")
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == "https://example.org"
    other = httpx.options(
        f"{guarded.http_url}/v1/embeddings", headers=asking | {"origin": "https://evil.example"}
    )
    assert "access-control-allow-origin" not in other.headers


def test_no_other_origin_by_default(http: httpx.Client) -> None:
    answer = http.get("/info", headers={"origin": "https://example.org"})
    assert "access-control-allow-origin" not in answer.headers


def test_headers_for_browsers(http: httpx.Client) -> None:
    assert http.get("/info").headers["x-content-type-options"] == "nosniff"
    assert http.get("/nowhere").headers["x-content-type-options"] == "nosniff"
    assert "frame-ancestors 'none'" in http.get("/docs").headers["content-security-policy"]


# Limits


@pytest.fixture(scope="module")
def narrow(launch_server: Any) -> Any:
    return launch_server(
        LLN_MODELS=MODEL,
        LLN_MAX_OPEN_REQUESTS="2",
        LLN_BODY_TIMEOUT_S="1.5",
    )


def test_one_request_too_many(narrow: Any) -> None:
    """Two slow requests occupy both slots; probes and metrics need none."""
    host, port = narrow.http_url.removeprefix("http://").split(":")
    slow = [socket.create_connection((host, int(port)), timeout=10) for _ in range(2)]
    for connection in slow:
        connection.sendall(
            b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: 300\r\n"
            b"Content-Type: application/json\r\n\r\n{"
        )
    time.sleep(0.3)
    refused = embed(narrow.http_url)
    assert refused.status_code == 429
    assert refused.headers["retry-after"] == "1"
    assert refused.json()["error"]["code"] == "too_many_requests"
    assert refused.json()["error"]["limit"] == 2
    with grpc.insecure_channel(narrow.grpc_address) as channel:
        error = grpc_status(channel)
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert ("lln-error-code", "too_many_requests") in error.trailing_metadata()
    assert httpx.get(f"{narrow.http_url}/health/ready").status_code == 200
    page = httpx.get(f"{narrow.http_url}/metrics").text
    assert 'lln_rejected_total{reason="too_many_requests"} 2.0' in page
    for connection in slow:
        assert connection.recv(64).startswith(b"HTTP/1.1 408")
        connection.close()
    assert embed(narrow.http_url).status_code == 200


def test_request_slots_are_always_released(narrow: Any) -> None:
    def fail(number: int) -> int:
        body = b"{" if number % 2 else b'{"input": ""}'
        headers = {"content-type": "application/json"}
        return httpx.post(
            f"{narrow.http_url}/v1/embeddings", content=body, headers=headers
        ).status_code

    with ThreadPoolExecutor(2) as pool:
        assert set(pool.map(fail, range(20))) <= {400, 429}
    assert embed(narrow.http_url).status_code == 200
