"""What the server tells of itself: models, health, metrics, documentation."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

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
