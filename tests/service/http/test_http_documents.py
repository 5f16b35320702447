"""POST /v1/documents: a vector and late chunks; and /v1/tokenize."""

from __future__ import annotations

import base64
from itertools import pairwise
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray

TEXT = " ".join(f"Sentence number {number} speaks of ships and of the sea." for number in range(60))
PLAIN = {"content-type": "text/plain; charset=utf-8"}


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
        {"type": "spans", "spans": spans, "context": "late", "opening": opening}
        for opening in (None, 0, 0.5, 10)
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
    within = {"type": "spans", "spans": spans, "context": "late"}
    plans = [within | {"alone": alone} for alone in (None, 0.5, 1)]
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


SHARES = {
    "balanced": (0.5, 0.3),
    "late": (0, 0),
    "alone": (1, 0),
    "title": (0.5, 1),
    "opening": (1, 0.3),
    "one_pass": (0, 0.2),
}


def vectors(http: httpx.Client, **fields: Any) -> NDArray[np.float32]:
    document = ask(http, TEXT[:900], encoding_format="base64", **fields)
    return np.stack([decoded(chunk["vector"]) for chunk in document["chunks"]])


@pytest.mark.parametrize("context", SHARES)
def test_a_context_stands_for_its_shares(http: httpx.Client, context: str) -> None:
    alone, opening = SHARES[context]
    chunks = {"type": "fixed", "tokens": 64}
    by_name = vectors(http, chunking=chunks | {"context": context})
    by_share = vectors(http, chunking=chunks | {"alone": alone, "opening": opening})
    np.testing.assert_array_equal(by_name, by_share)
    query = {"chunking": "fixed", "tokens": "64", "context": context, "encoding_format": "base64"}
    answer = http.post("/v1/documents", params=query, content=TEXT[:900].encode(), headers=PLAIN)
    in_query = np.stack([decoded(chunk["vector"]) for chunk in answer.json()["chunks"]])
    np.testing.assert_array_equal(in_query, by_name)
    if context == "balanced":
        np.testing.assert_array_equal(vectors(http, chunking=chunks), by_name)


def test_a_title_in_the_body_and_in_the_query_string(http: httpx.Client) -> None:
    chunks = {"type": "fixed", "tokens": 64, "context": "title"}
    titled = vectors(http, title="Fleets of the world", chunking=chunks)
    assert not np.array_equal(titled, vectors(http, chunking=chunks))
    query = {"chunking": "fixed", "tokens": "64", "context": "title", "encoding_format": "base64"}
    query["title"] = "Fleets of the world"
    answer = http.post("/v1/documents", params=query, content=TEXT[:900].encode(), headers=PLAIN)
    found = answer.json()
    np.testing.assert_array_equal(
        np.stack([decoded(chunk["vector"]) for chunk in found["chunks"]]), titled
    )
    assert found["accounting"]["tokens_alone"] > found["accounting"]["tokens"]


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
        ({"chunking": {"type": "fixed", "opening": -0.5}}, 400, "chunking.opening"),
        ({"chunking": {"type": "fixed", "opening": 10.5}}, 400, "chunking.opening"),
        ({"chunking": {"opening": 0.5}}, 400, "chunking.opening"),
        ({"chunking": {"type": "fixed", "alone": 1.5}}, 400, "chunking.alone"),
        ({"chunking": {"alone": 0.5}}, 400, "chunking.alone"),
        ({"chunking": {"type": "fixed", "context": "early"}}, 400, "chunking.context"),
        ({"chunking": {"context": "late"}}, 400, "chunking.context"),
        ({"chunking": {"type": "spans"}}, 400, "chunking.spans"),
        ({"title": "Ships"}, 400, "title"),
        ({"title": " ", "chunking": {"type": "fixed"}}, 400, "title"),
        ({"title": "a " * 600, "chunking": {"type": "fixed"}}, 400, "title"),
        ({"title": "Ships", "chunking": {"type": "fixed", "context": "late"}}, 400, "title"),
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
