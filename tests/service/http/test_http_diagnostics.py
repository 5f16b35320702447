"""/v1/claims and POST /v1/diagnostics over HTTP."""

from __future__ import annotations

import asyncio
import time
from typing import Any, cast

import httpx
import pytest

from engine.async_engine import AsyncEngine
from engine.claims.check import CLAIMS
from engine.errors import EngineUnavailable
from service.claims import ClaimsJob
from service.http.schemas.responses.diagnostics import ClaimList

TEXT = "The ship left the harbour at dawn, and nobody on the pier waved. " * 4


def ask(http: httpx.Client, **fields: Any) -> dict[str, Any]:
    response = http.post("/v1/diagnostics", json={"text": TEXT, **fields})
    assert response.status_code == 200, response.text
    document: dict[str, Any] = response.json()
    return document


def test_every_layer_and_head(http: httpx.Client) -> None:
    document = ask(http)
    assert document["model"] == "default"
    assert document["layers"] == list(range(6))
    assert document["heads"] == list(range(12))
    assert {"entropy", "temperature", "spectral_gap"} <= set(document["instruments"])
    for reading in document["instruments"].values():
        assert reading["unit"]
        assert reading["method"]
        width = 12 if reading["scope"] == "head" else 1
        assert [len(row) for row in reading["values"]] == [width] * 6
    gaps = document["instruments"]["spectral_gap"]["values"]
    assert all(0 <= gap <= 1.000001 for row in gaps for gap in row)


def test_chosen_layers_heads_and_instruments(http: httpx.Client) -> None:
    document = ask(http, layers=[5, 0], heads=[3], instruments=["entropy"])
    assert document["heads"] == [3]
    assert list(document["instruments"]) == ["entropy"]
    whole = ask(http, instruments=["entropy"])["instruments"]["entropy"]["values"]
    chosen = document["instruments"]["entropy"]["values"]
    expected = [[whole[layer][3]] for layer in document["layers"]]
    assert chosen == [pytest.approx(row, rel=1e-4) for row in expected]


def test_exactness_beyond_the_budget(http: httpx.Client) -> None:
    words = "word " * 20_000
    response = http.post("/v1/diagnostics", json={"text": words, "mode": "exact"})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["code"] == "exact_too_expensive"
    assert error["actual"] > error["limit"]


def test_a_text_of_one_word(http: httpx.Client) -> None:
    document = ask(http, text="a", layers=[0])
    assert "NaN" not in str(document)
    assert document["left_out"] == {}
    assert document["instruments"]["rank_collapse"]["scope"] == "layer"
    cosines = document["instruments"]["similarity"]["beside"]["cosines"]["values"]
    assert [len(row) for row in cosines[0]] == [12] * 12


def test_the_sample_and_its_spread(http: httpx.Client) -> None:
    fields = {
        "layers": [0],
        "heads": [2],
        "instruments": ["entropy", "head_kind"],
        "mode": "sampled",
    }
    asked = {"seed": 7, "sampled_rows": 40, "quantiles": [0.1, 0.5, 0.9]}
    document, again = (ask(http, **fields, **asked) for _ in range(2))
    assert {name: document[name] for name in asked} == asked
    assert document["rows_read"] == 40
    assert document["attention"] == ["block_diagonal"]
    assert "softmax" in document["notes"][0]
    entropy = document["instruments"]["entropy"]
    assert entropy["values"] == again["instruments"]["entropy"]["values"]
    [[low, middle, high]] = entropy["beside"]["quantiles"]["values"][0]
    assert low < middle < high
    assert document["instruments"]["head_kind"]["labels"] == [["previous"]]
    assert entropy["labels"] is None


def test_instruments_are_listed(http: httpx.Client) -> None:
    listed = http.get("/v1/diagnostics/instruments").json()["data"]
    assert [one["name"] for one in listed] == list(ask(http, layers=[0])["instruments"])
    assert all(one["unit"] and one["description"] for one in listed)


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"layers": [99]}, 400),
        ({"heads": [-1]}, 400),
        ({"instruments": ["horoscope"]}, 400),
        ({"mode": "rough"}, 400),
        ({"seed": -1}, 400),
        ({"sampled_rows": 0}, 400),
        ({"sampled_rows": "many"}, 422),
        ({"quantiles": [2]}, 400),
        ({"layers": ["first"]}, 422),
        ({"text": ""}, 400),
        ({"model": "nope"}, 404),
    ],
)
def test_bad_input(http: httpx.Client, fields: dict[str, Any], status: int) -> None:
    response = http.post("/v1/diagnostics", json={"text": TEXT, **fields})
    assert response.status_code == status, response.text
    assert response.json()["error"]["code"]


def _finished(http: httpx.Client) -> ClaimList:
    assert http.post("/v1/claims").status_code in (200, 202)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        answer = http.get("/v1/claims")
        found = ClaimList.model_validate_json(answer.content, strict=True)
        assert answer.status_code == (200 if found.state == "done" else 202)
        assert found.error is None
        assert found.checked == len(found.data) <= found.total == len(CLAIMS)
        if found.state == "done":
            return found
        assert int(answer.headers["retry-after"]) > 0
        time.sleep(0.1)
    raise AssertionError("the claims were not checked in time")


def test_claims(http: httpx.Client) -> None:
    found = _finished(http)
    assert [row.id for row in found.data] == [claim.id for claim in CLAIMS]
    some = http.get("/v1/claims", params={"only": ["lln.theorem-3.3", "rank-collapse"]}).json()
    assert some["state"] == "done"
    assert {row["id"].split(".")[0] for row in some["data"]} == {"lln", "rank-collapse"}
    [failed] = [row for row in some["data"] if row["id"] == "lln.theorem-3.3"]
    assert failed["verdict"] == "fails"
    assert len(failed["evidence"]["counterexample"]) == 3


def test_reading_the_claims_starts_nothing(launch_server: Any) -> None:
    server = launch_server(LLN_MODELS="default")
    url = f"{server.http_url}/v1/claims"
    for _ in range(2):
        answer = httpx.get(url)
        found = ClaimList.model_validate_json(answer.content, strict=True)
        assert answer.status_code == 200
        assert (found.state, found.checked, found.data) == ("not_started", 0, [])
    assert httpx.post(url, params={"only": "theorem-1"}).status_code == 400
    assert httpx.get(url).json()["state"] == "not_started"
    answer = httpx.post(url)
    assert answer.status_code == 202
    assert answer.json()["state"] == httpx.get(url).json()["state"] == "computing"


@pytest.mark.parametrize("verb", ["GET", "POST"])
def test_unknown_claim(http: httpx.Client, verb: str) -> None:
    answer = http.request(verb, "/v1/claims", params={"only": "theorem-1"})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "unknown_claim"
    assert answer.json()["error"]["param"] == "only"


@pytest.mark.parametrize(
    ("body", "code", "param", "message"),
    [
        ({"only": ["lln"]}, "unknown_field", "only", "only is not a known field"),
        (["lln"], "invalid_field", None, "the body: input should be an object, got a list"),
    ],
)
def test_the_checks_take_no_fields_in_a_body(
    http: httpx.Client, body: Any, code: str, param: str | None, message: str
) -> None:
    answer = http.post("/v1/claims", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (422, code, param)
    assert error["message"] == message
    assert http.post("/v1/claims", json={}).status_code in (200, 202)


def test_checks_that_failed_say_why_and_can_start_again() -> None:
    class Broken:
        def __getattr__(self, name: str) -> Any:
            raise EngineUnavailable("the engine has stopped")

    async def run() -> None:
        job = ClaimsJob(cast(AsyncEngine, Broken()))
        job.start()
        while job.read().state == "computing":
            await asyncio.sleep(0.01)
        failed = job.read()
        assert (failed.state, job.read().state) == ("failed", "failed")
        assert isinstance(failed.failure, EngineUnavailable)
        job.start()
        assert job.read().state == "computing"
        await job.stop()

    asyncio.run(run())
