"""Models, tokens and diagnoses over gRPC are those of HTTP."""

from __future__ import annotations

from typing import Any

import grpc
import httpx
import numpy as np
import pytest

from service.pb.lln.v1 import (
    diagnostics_pb2,
    models_pb2,
)
from tests.service.stubs import diagnostics_stub, models_stub

SOFTMAX = "sentence-transformers/all-MiniLM-L6-v2"
TEXTS = [
    "A short one.",
    "Linear attention keeps a state of fixed size, however long the text is. " * 20,
    "Μια γραμμή σε άλλο αλφάβητο, 漢字 and an emoji 🙂.",
]


@pytest.fixture(scope="module")
def models(channel: grpc.Channel) -> Any:
    return models_stub(channel)


def test_models_are_those_of_http(models: Any, http: httpx.Client) -> None:
    listed = models.List(models_pb2.ListModelsRequest()).models
    data = http.get("/v1/models").raise_for_status().json()["data"]

    assert [model.name for model in listed] == [row["name"] for row in data]
    for model, row in zip(listed, data, strict=True):
        assert list(model.attention) == row["attention"]
        assert dict(model.prompts) == row["prompts"]
        assert (model.dim, model.max_tokens) == (row["dim"], row["max_tokens"])
        assert model.HasField("calibration") == (row["calibration"] is not None)
        assert models.Get(models_pb2.GetModelRequest(model=model.name)) == model
    assert models.Get(models_pb2.GetModelRequest()) == listed[0]


def test_tokens_are_those_of_http(models: Any, http: httpx.Client) -> None:
    found = models.Tokenize(models_pb2.TokenizeRequest(text=TEXTS[2]))
    expected = http.post("/v1/tokenize", json={"text": TEXTS[2]}).raise_for_status().json()

    assert list(found.ids) == expected["ids"]
    assert list(found.tokens) == expected["tokens"]
    assert [list(span) for span in zip(found.starts, found.ends, strict=True)] == (
        expected["offsets"]
    )


def test_tokens_of_a_long_text_are_those_of_http(models: Any, http: httpx.Client) -> None:
    """They are encoded in several parts."""
    text = "naïve otters " * 2_000
    found = models.Tokenize(models_pb2.TokenizeRequest(text=text))
    expected = http.post("/v1/tokenize", json={"text": text}).raise_for_status().json()
    assert list(found.ids) == expected["ids"]
    assert list(found.tokens) == expected["tokens"]
    assert list(map(list, zip(found.starts, found.ends, strict=True))) == expected["offsets"]


def _beside(found: diagnostics_pb2.DiagnoseResponse, instrument: str, name: str) -> Any:
    [reading] = [one for one in found.instruments if one.name == instrument]
    [part] = [part for part in reading.beside if part.name == name]
    return part


def test_diagnosis_equals_that_of_http(channel: grpc.Channel, http: httpx.Client) -> None:
    stub = diagnostics_stub(channel)
    request = diagnostics_pb2.DiagnoseRequest(model=SOFTMAX, text=TEXTS[1], layers=[0, 5])
    found = stub.Diagnose(request)
    body = {"model": SOFTMAX, "text": TEXTS[1], "layers": [0, 5]}
    expected = http.post("/v1/diagnostics", json=body).raise_for_status().json()

    assert (list(found.layers), len(found.heads), found.tokens) == (
        expected["layers"],
        len(expected["heads"]),
        expected["tokens"],
    )
    assert {reading.name for reading in found.instruments} == set(expected["instruments"])
    listed = stub.ListInstruments(diagnostics_pb2.ListInstrumentsRequest())
    assert [one.name for one in listed.instruments] == list(expected["instruments"])
    cosines = _beside(found, "similarity", "cosines")
    assert list(cosines.layers[1].shape) == [12, 12]
    np.testing.assert_allclose(
        np.reshape(cosines.layers[1].values, (12, 12)),
        expected["instruments"]["similarity"]["beside"]["cosines"]["values"][1],
        rtol=1e-6,
    )
    for reading in found.instruments:
        values = np.array([list(layer.values) for layer in reading.layers])
        np.testing.assert_allclose(
            values, expected["instruments"][reading.name]["values"], rtol=1e-4, atol=1e-5
        )
