"""Plans over both protocols: the same numbers, the same refusals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import grpc
import httpx
import pytest

from engine.plan import MOST_TOKENS
from service.pb.lln.v1 import models_pb2, models_pb2_grpc

if TYPE_CHECKING:
    from tests.service.conftest import RunningServer


@pytest.fixture(scope="module")
def stub(server: RunningServer) -> Iterator[Any]:
    with grpc.insecure_channel(server.grpc_address) as channel:
        yield models_pb2_grpc.ModelsStub(channel)  # type: ignore[no-untyped-call]


def test_the_same_plan_over_both_protocols(http: httpx.Client, stub: Any) -> None:
    answer = http.post("/v1/plan", json={"tokens": 100_000}).json()
    message = stub.Plan(models_pb2.PlanRequest(tokens=100_000))
    assert (answer["path"], answer["fits"], answer["tiles"]) == ("swept", True, 98)
    assert answer["bytes"] > 100_000 * 384 * 4
    assert 0 < answer["seconds"] < 3_600
    for name, value in answer.items():
        expected = pytest.approx(value, rel=0.5) if name == "seconds" else value
        assert getattr(message, name) == expected


def test_a_text_is_counted_first(http: httpx.Client, stub: Any) -> None:
    answer = http.post("/v1/plan", json={"text": "one two three"}).json()
    assert (answer["tokens"], answer["path"], answer["tiles"]) == (5, "packed", 1)
    assert stub.Plan(models_pb2.PlanRequest(text="one two three")).tokens == 5


def test_beyond_the_longest_text_nothing_fits(http: httpx.Client) -> None:
    answer = http.post("/v1/plan", json={"tokens": 1_048_577}).json()
    assert answer["fits"] is False
    assert answer["max_tokens"] == 1_048_576


@pytest.mark.parametrize("tokens", [1_048_577, MOST_TOKENS])
def test_any_number_of_tokens_is_told_the_same_way(
    tokens: int, http: httpx.Client, stub: Any
) -> None:
    """Also numbers whose bytes need all the bits there are."""
    answer = http.post("/v1/plan", json={"tokens": tokens}).json()
    assert stub.Plan(models_pb2.PlanRequest(tokens=tokens)).bytes == answer["bytes"]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"tokens": 0},
        {"tokens": MOST_TOKENS + 1},
        {"tokens": 5, "text": "five"},
        {"text": ""},
    ],
)
def test_what_cannot_be_planned(body: dict[str, object], http: httpx.Client) -> None:
    answer = http.post("/v1/plan", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_what_cannot_be_planned_over_grpc(stub: Any) -> None:
    sizes = (0, MOST_TOKENS + 1, 2**64 - 1)
    requests = [models_pb2.PlanRequest(tokens=tokens) for tokens in sizes]
    for request in (models_pb2.PlanRequest(), *requests):
        with pytest.raises(grpc.RpcError) as caught:
            stub.Plan(request)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("path", ["/v1/plan", "/v1/tokenize"])
def test_a_text_is_counted_within_the_callers_deadline(http: httpx.Client, path: str) -> None:
    body = {"text": "one two three " * 1_000_000}
    answer = http.post(path, json=body, headers={"x-request-timeout-ms": "5"})
    assert answer.status_code == 504
    error = answer.json()["error"]
    assert (error["code"], error["limit"]) == ("deadline_exceeded", 0.005)
    generous = {"x-request-timeout-ms": "60000"}
    assert http.post(path, json={"text": "one two"}, headers=generous).status_code == 200


@pytest.mark.parametrize("path", ["/v1/plan", "/v1/tokenize"])
@pytest.mark.parametrize("timeout", ["soon", "0", "-1", "1.5"])
def test_a_deadline_that_is_none_is_refused(http: httpx.Client, path: str, timeout: str) -> None:
    headers = {"x-request-timeout-ms": timeout}
    answer = http.post(path, json={"text": "one two"}, headers=headers)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "invalid_timeout")
    assert error["param"] == "x-request-timeout-ms"
