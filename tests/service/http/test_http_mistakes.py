"""How each mistake over HTTP is answered."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.errors import (
    shown,
)

MEGABYTE = 1024 * 1024
WHALE = "x" * 50_000
JSON = {"content-type": "application/json"}


def error_of(response: httpx.Response) -> dict[str, Any]:
    document = response.json()
    # Clients of Voyage and Jina read it, and they have this path too.
    if response.url.path == "/v1/embeddings":
        assert document.pop("detail") == document["error"]["message"]
    assert list(document) == ["error"]
    assert list(document["error"]) == ["message", "type", "code", "param", "limit", "actual"]
    assert response.headers["x-request-id"]
    error: dict[str, Any] = document["error"]
    return error


def post(http: httpx.Client, body: bytes, content_type: str = "application/json") -> httpx.Response:
    return post_to(http, "/v1/embeddings", body, content_type)


def post_to(
    http: httpx.Client, path: str, body: bytes, content_type: str = "application/json"
) -> httpx.Response:
    headers = {"content-type": content_type} if content_type else {}
    return http.post(path, content=body, headers=headers)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "invalid_json"),
        (b"{", "invalid_json"),
        (b'{"input": NaN}', "invalid_json"),
        (b'{"input": "a\xff"}', "invalid_utf8"),
        (b'{"input": "\\ud800"}', "invalid_unicode"),
    ],
)
def test_unreadable_body(http: httpx.Client, body: bytes, code: str) -> None:
    response = post(http, body)
    assert response.status_code == 400
    assert error_of(response)["code"] == code


@pytest.mark.parametrize("body", [b"[]", b"null", b'"text"', b"7"])
def test_json_that_is_no_object(http: httpx.Client, body: bytes) -> None:
    response = post(http, body)
    assert response.status_code == 422
    assert error_of(response)["code"] in ("invalid_field", "missing_field")


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded"])
def test_body_that_is_not_declared_json(http: httpx.Client, content_type: str) -> None:
    response = post(http, b'{"input": "x"}', content_type)
    assert response.status_code == 415
    assert error_of(response)["code"] == "unsupported_media_type"


@pytest.mark.parametrize("header", ["origin", "sec-fetch-site"])
def test_a_browser_declares_its_json(http: httpx.Client, header: str) -> None:
    """Its page could send a body without a content type to another origin, unasked."""
    sent = {"origin": str(http.base_url), "sec-fetch-site": "same-origin"}
    body = b'{"input": "x"}'
    response = http.post("/v1/embeddings", content=body, headers={header: sent[header]})
    assert error_of(response)["code"] == "unsupported_media_type"
    assert http.post("/v1/embeddings", content=body).status_code == 200


def test_charset_beside_the_media_type_is_fine(http: httpx.Client) -> None:
    response = post(http, b'{"input": "x"}', "application/json; charset=utf-8")
    assert response.status_code == 200


@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate, gzip", "GZIP"])
@pytest.mark.parametrize("content_type", ["application/json", "text/plain"])
def test_an_encoded_body_is_refused_by_its_header(
    http: httpx.Client, content_type: str, encoding: str
) -> None:
    headers = {"content-type": content_type, "content-encoding": encoding}
    response = http.post("/v1/documents", content=b'{"text": "x"}', headers=headers)
    assert response.status_code == 415
    error = error_of(response)
    assert (error["code"], error["param"]) == ("unsupported_encoding", "content-encoding")
    assert (error["limit"], error["actual"]) == ("identity", encoding)


def test_a_body_that_says_that_it_is_not_encoded_is_read(http: httpx.Client) -> None:
    headers = JSON | {"content-encoding": "identity"}
    assert http.post("/v1/embeddings", content=b'{"input": "x"}', headers=headers).is_success


def test_unknown_route(http: httpx.Client) -> None:
    response = http.get("/v1/nothing")
    assert response.status_code == 404
    assert error_of(response)["code"] == "route_not_found"


@pytest.mark.parametrize("path", ["//", "///", "//docs", "/v1//models", "/page//main.js"])
def test_nothing_is_served_at_doubled_slashes(path: str, http: httpx.Client) -> None:
    connection = HTTPConnection(http.base_url.host, http.base_url.port)  # httpx would mend the path
    connection.request("GET", path)
    answer = connection.getresponse()
    assert answer.status == 404
    assert json.load(answer)["error"]["code"] == "route_not_found"
    connection.close()


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/benchmarks/bench-1", "/docs"])
def test_a_slash_too_many_is_named_and_not_redirected(path: str, http: httpx.Client) -> None:
    """A redirect would lead to the host that the request names, and over http."""
    response = http.post(f"{path}/", json={"input": "x"}, headers={"host": "elsewhere.test"})
    assert response.status_code == 404
    error = error_of(response)
    assert error["code"] == "route_not_found"
    assert error["message"] == f"there is nothing at {path}/; did you mean {path}?"


def test_the_list_of_models_with_a_slash_is_no_model_without_a_name(http: httpx.Client) -> None:
    error = error_of(http.get("/v1/models/"))
    assert error["code"] == "route_not_found"
    assert error["message"] == "there is nothing at /v1/models/; did you mean /v1/models?"


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/diagnostics", {"text": "a", "mode": WHALE}),
        ("/v1/diagnostics", {"text": "a", "instruments": [WHALE]}),
        ("/v1/diagnostics", {"document": WHALE}),
        ("/v1/attention/map", {"document": WHALE, "layer": 0, "head": 0}),
        ("/v1/attention/map", {"text": "a", "layer": 0, "head": 0, "statistic": WHALE}),
        ("/v1/structure", {"text": "a", WHALE: 1}),
        ("/v1/benchmarks", {"suite": WHALE}),
        ("/v1/benchmarks", {"attentions": [WHALE]}),
        ("/v1/embeddings", {"input": "a", "model": WHALE}),
        ("/v1/embeddings", {"input": "a", "prompt_name": WHALE}),
        (f"/v1/{WHALE[:30_000]}", {}),
    ],
)
def test_an_error_repeats_so_much_of_a_value(
    http: httpx.Client, path: str, fields: dict[str, Any]
) -> None:
    response = http.post(path, json=fields)
    assert response.is_client_error
    assert len(response.content) < 1_000


def test_wrong_method(http: httpx.Client) -> None:
    response = http.get("/v1/embeddings")
    assert response.status_code == 405
    assert response.headers["allow"] == "POST"
    assert error_of(response)["code"] == "method_not_allowed"


def test_allow_names_every_verb_of_a_path(http: httpx.Client) -> None:
    assert http.delete("/v1/benchmarks").headers["allow"] == "GET, HEAD, POST"
    assert http.put("/health").headers["allow"] == "GET, HEAD"


@pytest.mark.parametrize("path", ["/", "/health/ready", "/docs", "/v1/models", "/v1/models/nope"])
def test_head_is_answered_like_get_without_the_body(http: httpx.Client, path: str) -> None:
    got, asked = http.get(path), http.head(path)
    assert (asked.status_code, asked.content) == (got.status_code, b"")
    for name in ("content-type", "content-length"):
        assert asked.headers[name] == got.headers[name]
    assert http.get(path).status_code == got.status_code  # the connection is still in step


def test_head_of_what_cannot_be_got_is_refused(http: httpx.Client) -> None:
    answer = http.head("/v1/embeddings")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("dimensions=18446744073709551616", "dimensions"),
        ("dimensions=-9223372036854775809", "dimensions"),
        ("chunking=fixed&tokens=4&overlap=99999999999999999999999", "overlap"),
        ("chunking=sentences&min_tokens=99999999999999999999999", "min_tokens"),
        ("dimensions=" + "9" * 4_300, "dimensions"),
    ],
)
def test_a_number_beyond_64_bits_is_refused_as_text(
    http: httpx.Client, query: str, param: str
) -> None:
    response = http.post(
        f"/v1/documents?{query}", content="a text", headers={"content-type": "text/plain"}
    )
    error = error_of(response)
    assert response.status_code == 400
    assert error["param"].endswith(param)
    assert error["actual"] == shown(query.rpartition("=")[2])
    assert len(error["message"]) < 300
    assert response.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("number", ["18446744073709551615", "18446744073709551616", "9" * 5_000])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", '{"input": "x", "dimensions": %s}'),
        ("/v1/documents", '{"text": "x", "chunking": {"type": "fixed", "overlap": %s}}'),
        ("/v1/plan", '{"tokens": %s}'),
        ("/v1/diagnostics", '{"text": "x", "layers": [%s]}'),
        ("/v1/embeddings", '{"input": [[%s]]}'),
    ],
)
def test_numbers_without_bounds_in_json(
    http: httpx.Client, path: str, body: str, number: str
) -> None:
    response = post_to(http, path, (body % number).encode())
    assert response.status_code in (400, 422)
    error_of(response)


def pieces() -> Iterator[bytes]:
    yield b'{"input": "'
    for _ in range(50):
        yield b"x" * MEGABYTE
    yield b'"}'


@pytest.mark.parametrize("chunked", [False, True])
def test_body_of_fifty_megabytes(http: httpx.Client, chunked: bool) -> None:
    body = pieces() if chunked else b"".join(pieces())
    response = http.post("/v1/embeddings", content=body, headers=JSON)
    assert response.status_code == 413
    error = error_of(response)
    assert (error["code"], error["limit"]) == ("body_too_large", 32 * MEGABYTE)
    assert error["actual"] > 32 * MEGABYTE
    assert http.get("/health/ready").status_code == 200


@pytest.mark.parametrize("header", ["expect: 100-continue", "transfer-encoding: chunked"])
def test_body_of_fifty_megabytes_by_curl(server: Any, tmp_path: Path, header: str) -> None:
    body = tmp_path / "body.json"
    body.write_bytes(b"".join(pieces()))
    command = ["curl", "-sS", "-w", "\n%{http_code}", "-H", "content-type: application/json"]
    command += ["-H", header, "--data-binary", f"@{body}", f"{server.http_url}/v1/embeddings"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    document, status = answer.stdout.rsplit("\n", 1)
    assert status == "413"
    assert json.loads(document)["error"]["code"] == "body_too_large"


def test_memory_does_not_grow_with_refused_bodies(http: httpx.Client) -> None:
    def resident() -> float:
        page = http.get("/metrics").text
        [line] = re.findall(r"^process_resident_memory_bytes (.+)$", page, re.MULTILINE)
        return float(line)

    def refused() -> int:
        return http.post("/v1/embeddings", content=pieces(), headers=JSON).status_code

    refused()
    before = resident()
    assert {refused() for _ in range(3)} == {413}
    assert resident() - before < 64 * MEGABYTE
