"""What the server says of itself and its models, and what a text would cost."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import grpc
import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.execution.planner import MOST_TOKENS
from service.pb.lln.v1 import models_pb2
from tests.service.stubs import models_stub

if TYPE_CHECKING:
    from tests.service.conftest import RunningServer

PUBLISHED = "sentence-transformers/all-MiniLM-L6-v2"


def test_models_in_openais_shape_and_ours(http: httpx.Client) -> None:
    document = http.get("/v1/models").json()
    assert document["object"] == "list"
    models = {model["id"]: model for model in document["data"]}
    assert list(models) == ["default", PUBLISHED]
    for model in models.values():
        assert model["object"] == "model"
        assert isinstance(model["created"], int)
        assert (model["family"], model["dim"], model["num_layers"]) == ("bert", 384, 6)
        assert len(model["attention"]) == 6
        assert model["chunk_context"] == "balanced"
        assert re.fullmatch(r"[0-9a-f]{64}", model["revision"])
    assert models[PUBLISHED]["owned_by"] == "sentence-transformers"
    assert set(models[PUBLISHED]["attention"]) == {"softmax"}
    assert set(models["default"]["attention"]) == {"lln_diag"}


@pytest.mark.parametrize("name", ["default", PUBLISHED])
def test_one_model(http: httpx.Client, name: str) -> None:
    assert http.get(f"/v1/models/{name}").json()["id"] == name


def test_unknown_model(http: httpx.Client) -> None:
    response = http.get("/v1/models/some/where")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"


def test_info(http: httpx.Client) -> None:
    document = http.get("/info").json()
    assert document["name"] == "lln"
    assert [model["name"] for model in document["models"]] == ["default", PUBLISHED]
    assert document["limits"]["max_inputs"] == 2048


def test_health(http: httpx.Client) -> None:
    assert http.get("/health/live").status_code == 200
    response = http.get("/health/ready")
    assert response.status_code == 200
    assert response.json()["status"] == "ready"


def test_metrics_count_a_request_under_its_route(http: httpx.Client) -> None:
    def count(page: str, name: str, **labels: str) -> float:
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                if sample.name == name and labels.items() <= sample.labels.items():
                    return sample.value
        raise AssertionError(f"{name}{labels} is not there")

    labels = {"protocol": "http", "method": "POST /v1/embeddings", "code": "ok"}
    before = http.get("/metrics").text
    http.post("/v1/embeddings", json={"input": "hello"})
    after = http.get("/metrics").text
    for name, wanted in (
        ("lln_requests_total", labels),
        ("lln_tokens_total", {"model": "default"}),
    ):
        assert count(after, name, **wanted) > count(before, name, **wanted)
    assert count(after, "lln_units_total", kind="batch") > count(
        before, "lln_units_total", kind="batch"
    )


@pytest.mark.parametrize("version", ["abc", "1.x", '"1.0.0"', ""])
@pytest.mark.parametrize("media_type", ["application/openmetrics-text", "text/plain"])
def test_metrics_whatever_version_is_asked_for(
    http: httpx.Client, media_type: str, version: str
) -> None:
    page = http.get("/metrics", headers={"accept": f"{media_type};version={version}"})
    assert page.status_code == 200
    assert "lln_requests_total" in page.text
    if version:
        assert page.headers["content-type"].startswith("text/plain; version=0.0.4")


def test_labels_do_not_grow_with_what_clients_send(http: httpx.Client) -> None:
    for number in range(5):
        http.get(f"/unheard/of/{number}")
        http.get(f"/v1/models/unheard{number}")
        http.post("/v1/embeddings", json={"input": "x", "model": f"unheard{number}"})
    assert "unheard" not in http.get("/metrics").text


def test_docs_need_no_other_server(http: httpx.Client) -> None:
    page = http.get("/docs").text
    assert "openapi.json" in page
    assert not re.findall(r"""(?:src|href|fetch\()\s*=?\s*["'](?:https?:)?//""", page)


def test_openapi_describes_bodies_and_errors(http: httpx.Client) -> None:
    document: dict[str, Any] = http.get("/openapi.json").json()
    paths = {path for path in document["paths"] if not path.startswith("/health")}
    assert {
        "/v1/embeddings",
        "/v1/documents",
        "/v1/tokenize",
        "/v1/diagnostics",
        "/v1/benchmarks",
        "/v1/benchmarks/{benchmark_id}",
        "/v1/models",
        "/info",
        "/metrics",
    } <= paths
    operation = document["paths"]["/v1/embeddings"]["post"]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    fields = document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]["properties"]
    assert {"input", "model", "dimensions", "encoding_format", "user", "truncate"} <= set(fields)
    assert set(operation["responses"]) == {"200", "4XX", "5XX"}


@pytest.fixture(scope="module")
def stub(server: RunningServer) -> Iterator[Any]:
    with grpc.insecure_channel(server.grpc_address) as channel:
        yield models_stub(channel)


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


def test_a_plan_counts_what_a_context_reads_again(http: httpx.Client, stub: Any) -> None:
    late, balanced = (
        http.post("/v1/plan", json={"tokens": 8_192, "context": context}).json()
        for context in ("late", "balanced")
    )
    assert late["tokens_alone"] == 0
    assert balanced["tokens"] == 8_192
    assert balanced["tokens_alone"] == 8_190 + 31 + 2 * 33
    assert 1.5 < balanced["seconds"] / late["seconds"] < 2.6
    message = stub.Plan(models_pb2.PlanRequest(tokens=8_192, context="balanced"))
    assert message.tokens_alone == balanced["tokens_alone"]
    assert http.post("/v1/plan", json={"tokens": 5, "context": "early"}).status_code == 400
    with pytest.raises(grpc.RpcError) as caught:
        stub.Plan(models_pb2.PlanRequest(tokens=5, context="early"))
    assert "balanced, late, alone, title, opening" in str(caught.value.details())


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


@pytest.mark.parametrize(
    ("body", "given"), [({}, "neither"), ({"tokens": 5, "text": "five"}, "both")]
)
def test_a_plan_needs_one_size(body: dict[str, object], given: str, http: httpx.Client) -> None:
    error = http.post("/v1/plan", json=body).json()["error"]
    assert error["message"] == f"give tokens or text to plan for, one of the two; got {given}"
    assert error["actual"] == given


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
