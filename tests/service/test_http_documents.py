"""POST /v1/documents: one document as a vector and as late chunks; and /v1/tokenize."""

from __future__ import annotations

import base64
from itertools import pairwise
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray

TEXT = " ".join(f"Sentence number {number} speaks of ships and of the sea." for number in range(60))


def ask(http: httpx.Client, text: str = TEXT, **fields: Any) -> dict[str, Any]:
    response = http.post("/v1/documents", json={"text": text, **fields})
    assert response.status_code == 200, response.text
    document: dict[str, Any] = response.json()
    return document


def decoded(value: str) -> NDArray[np.float32]:
    return np.frombuffer(base64.b64decode(value), dtype="<f4")


def test_without_chunking_it_is_the_embedding_of_the_text(http: httpx.Client) -> None:
    document = ask(http)
    assert document["object"] == "document_embedding"
    assert document["chunks"] == []
    answer = http.post("/v1/embeddings", json={"input": TEXT}).json()
    np.testing.assert_allclose(document["vector"], answer["data"][0]["embedding"], atol=2e-6)
    assert document["usage"] == answer["usage"]


def test_accounting(http: httpx.Client) -> None:
    cost = ask(http)["accounting"]
    assert cost["tokens"] == cost["tokens_embedded"] > 600
    assert cost["dropped"] is None
    assert cost["compute_s"] > 0
    assert cost["queue_s"] >= 0


@pytest.mark.parametrize("overlap", [0, 16])
def test_fixed_chunks_cover_the_text_in_order(http: httpx.Client, overlap: int) -> None:
    chunking = {"type": "fixed", "tokens": 64, "overlap": overlap}
    document = ask(http, chunking=chunking)
    chunks = document["chunks"]
    assert [chunk["index"] for chunk in chunks] == list(range(len(chunks)))
    assert chunks[0]["characters"]["start"] == 0
    assert chunks[-1]["characters"]["end"] == len(TEXT)
    for chunk, following in pairwise(chunks):
        assert following["tokens"]["start"] == chunk["tokens"]["end"] - overlap
        assert chunk["tokens"]["end"] - chunk["tokens"]["start"] == 64
    for chunk in chunks:
        assert np.linalg.norm(chunk["vector"]) == pytest.approx(1, abs=1e-5)
        assert TEXT[chunk["characters"]["start"] : chunk["characters"]["end"]].strip()


def test_chunks_with_their_documents_opening(http: httpx.Client) -> None:
    spans = [{"start": 0, "end": 40}, {"start": 900, "end": 1000}]
    plans = [
        {"type": "spans", "spans": spans, "opening": opening} for opening in (None, 0, 0.5, 10)
    ]
    absent, none, some, most = (
        np.array([chunk["vector"] for chunk in ask(http, chunking=plan)["chunks"]])
        for plan in plans
    )
    np.testing.assert_allclose(absent, none, atol=2e-6)
    # The more of what they share, the more alike they are.
    alike = [float(found[0] @ found[1]) for found in (none, some, most)]
    assert alike == sorted(alike)
    assert alike[2] > 0.95 > alike[0]


def test_chunks_read_alone(http: httpx.Client) -> None:
    """All of the way they are texts of their own; half of it, they lie between."""
    passages = [f"Sentence number {number} speaks of ships and of the sea." for number in (0, 18)]
    starts = [TEXT.index(passage) for passage in passages]
    spans = [
        {"start": start, "end": start + len(passage)}
        for start, passage in zip(starts, passages, strict=True)
    ]
    plans = [{"type": "spans", "spans": spans, "alone": alone} for alone in (None, 0.5, 1)]
    late, half, alone = (
        np.array([chunk["vector"] for chunk in ask(http, chunking=plan)["chunks"]])
        for plan in plans
    )
    found = http.post("/v1/embeddings", json={"input": passages}).raise_for_status().json()["data"]
    own = np.array([one["embedding"] for one in found])
    assert (late * own).sum(1).max() < 0.98
    np.testing.assert_allclose(alone, own, atol=2e-6)
    for one in (late, alone):
        assert ((half * one).sum(1) > (late * alone).sum(1)).all()


def test_base64(http: httpx.Client) -> None:
    chunking = {"type": "fixed", "tokens": 128}
    numbers = ask(http, chunking=chunking)
    packed = ask(http, chunking=chunking, encoding_format="base64")
    np.testing.assert_allclose(decoded(packed["vector"]), numbers["vector"], atol=2e-6)
    for one, other in zip(packed["chunks"], numbers["chunks"], strict=True):
        np.testing.assert_allclose(decoded(one["vector"]), other["vector"], atol=2e-6)


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"text": ""}, 400, "text"),
        ({"text": ["a"]}, 422, "text"),
        ({"chunking": {"type": "magic"}}, 422, "chunking.type"),
        ({"chunking": {"type": "fixed", "tokns": 3}}, 422, "chunking.tokns"),
        ({"chunking": {"type": "fixed", "tokens": 0}}, 400, None),
        ({"chunking": {"type": "fixed", "tokens": 8, "overlap": 8}}, 400, None),
        ({"chunking": {"type": "fixed", "opening": -0.5}}, 422, "chunking.opening"),
        ({"chunking": {"type": "fixed", "opening": 10.5}}, 422, "chunking.opening"),
        ({"chunking": {"opening": 0.5}}, 400, "chunking.opening"),
        ({"chunking": {"type": "fixed", "alone": 1.5}}, 422, "chunking.alone"),
        ({"chunking": {"alone": 0.5}}, 400, "chunking.alone"),
        ({"dimensions": 0}, 400, "dimensions"),
        ({"model": "nope"}, 404, "model"),
    ],
)
def test_bad_input_is_refused_by_name(
    http: httpx.Client, fields: dict[str, Any], status: int, param: str | None
) -> None:
    response = http.post("/v1/documents", json={"text": TEXT, **fields})
    error = response.json()["error"]
    assert response.status_code == status, error
    assert param is None or error["param"] == param


def test_a_json_document_has_nothing_in_the_query_string(http: httpx.Client) -> None:
    """What looks as if it were heard must be."""
    answer = http.post("/v1/documents?chunking=fixed", json={"text": TEXT})
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert (error["code"], error["param"]) == ("unknown_field", "chunking")


def test_tokenize(http: httpx.Client) -> None:
    text = "Größe matters."
    found = http.post("/v1/tokenize", json={"text": text}).json()
    assert found["count"] == len(found["ids"]) == len(found["offsets"]) == len(found["tokens"])
    assert found["offsets"][0] == found["offsets"][-1] == [0, 0]
    assert (found["tokens"][0], found["tokens"][-1]) == ("[CLS]", "[SEP]")
    spans = found["offsets"][1:-1]
    assert text[spans[0][0] : spans[0][1]].startswith("G")
    assert spans[-1][1] == len(text)
