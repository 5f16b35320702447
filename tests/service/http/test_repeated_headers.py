"""Headers that come more than once: lists are joined, and of others only one value is taken."""

from __future__ import annotations

import re
from typing import Any

import grpc
import httpx
import pytest

from service.pb.lln.v1 import embeddings_pb2 as pb
from service.repeated_headers import merged
from tests.service.stubs import embeddings_stub, grpc_status

BODY = '{"input": "a text"}'
JSON = ("content-type", "application/json")
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def post(http: httpx.Client, *headers: tuple[str, str], path: str = "/v1/embeddings") -> Any:
    return http.post(path, content=BODY, headers=[JSON, *headers])


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("authorization", ("Bearer one-of-two-keys-12", "Bearer two-of-two-keys-12")),
        ("x-api-key", ("one-of-two-keys-12", "two-of-two-keys-12")),
        ("content-type", ("application/json", "text/plain")),
        ("x-request-timeout-ms", ("5000", "60000")),
        ("origin", ("http://one.example", "http://two.example")),
        ("sec-fetch-site", ("same-origin", "cross-site")),
        ("range", ("bytes=0-1", "bytes=2-3")),
    ],
)
def test_different_values_are_refused(
    http: httpx.Client, name: str, values: tuple[str, str]
) -> None:
    headers = [(name, value) for value in values]
    answer = http.post("/v1/embeddings", content=BODY, headers=[*{JSON, *headers}])
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("repeated_header", name)
    assert (error["limit"], error["actual"]) == (1, 2)
    assert not any(value in answer.text for value in values if "key" in value)


def test_what_is_said_twice_is_said(http: httpx.Client) -> None:
    key, timeout = ("authorization", "Bearer a-key-of-sixteen"), ("x-request-timeout-ms", "60000")
    assert post(http, JSON, key, key, timeout, timeout).status_code == 200


def test_a_vendors_route_refuses_in_its_form(http: httpx.Client) -> None:
    keys = [("authorization", f"Bearer a-key-of-sixteen-{end}") for end in "ab"]
    answer = http.post("/v2/embed", content="{}", headers=[JSON, *keys])
    assert answer.status_code == 400
    assert "authorization" in answer.json()["message"]


def test_a_list_may_stand_on_several_lines(http: httpx.Client) -> None:
    encodings = [("content-encoding", "identity"), ("content-encoding", "gzip")]
    refused = post(http, *encodings)
    assert (refused.status_code, refused.json()["error"]["code"]) == (415, "unsupported_encoding")
    events = [("accept", "image/png"), ("accept", "application/x-ndjson")]
    answer = http.post("/v1/documents", content='{"text": "a text"}', headers=[JSON, *events])
    assert answer.headers["content-type"] == "application/x-ndjson"
    page = http.get("/")
    tags = [("if-none-match", '"another"'), ("if-none-match", page.headers["etag"])]
    assert http.get("/", headers=tags).status_code == 304


def test_of_several_request_ids_none_counts(http: httpx.Client, channel: grpc.Channel) -> None:
    ids = [("x-request-id", "one"), ("x-request-id", "two")]
    answer = post(http, *ids)
    assert answer.status_code == 200
    assert re.fullmatch("[0-9a-f]{32}", answer.headers["x-request-id"])
    assert post(http, ids[0], ids[0]).headers["x-request-id"] == "one"

    request = pb.EmbedRequest(input=[pb.Input(text="a text")])
    _, call = embeddings_stub(channel).Embed.with_call(request, metadata=ids)
    assert re.fullmatch("[0-9a-f]{32}", dict(call.initial_metadata())["x-request-id"])


def test_grpc_without_keys_refuses_two_of_them_too(channel: grpc.Channel) -> None:
    keys = [("x-api-key", "one-of-two-keys-12"), ("x-api-key", "two-of-two-keys-12")]
    refused = grpc_status(channel, *keys)
    assert refused.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "two-of" not in refused.details()
    assert ("lln-error-param", "x-api-key") in refused.trailing_metadata()


def test_of_several_traces_none_is_continued() -> None:
    pairs = [("traceparent", TRACE), ("traceparent", TRACE.replace("4", "5"))]
    states = [("tracestate", "a=1"), ("tracestate", "b=2")]
    assert list(merged([*pairs, *states])) == [("tracestate", "a=1, b=2")]


def test_other_headers_stay_as_they_are() -> None:
    pairs = [("cookie", "a=1"), ("cookie", "b=2"), ("x-forwarded-for", "::1")]
    assert list(merged(pairs)) == pairs
