"""POST /v1/diagnostics and /v1/benchmarks: thin, but measured for real."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

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
        ({"layers": ["first"]}, 422),
        ({"text": ""}, 400),
        ({"model": "nope"}, 404),
    ],
)
def test_bad_input(http: httpx.Client, fields: dict[str, Any], status: int) -> None:
    response = http.post("/v1/diagnostics", json={"text": TEXT, **fields})
    assert response.status_code == status, response.text
    assert response.json()["error"]["code"]
