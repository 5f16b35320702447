"""Reranking in each vendor's form: our own scores, by each vendor's client as released."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.service.dialects.conftest import KEY

QUERY = "weather"
TEXTS = ["The cat sat.", "Rain fell in the evening.", "Nothing of note."]


@pytest.fixture
def expected(api: httpx.Client) -> list[tuple[int, float]]:
    answer = api.post("/v1/rerank", json={"query": QUERY, "documents": TEXTS}).json()
    return [(one["index"], one["relevance_score"]) for one in answer["results"]]


def pairs(results: Any) -> list[tuple[int, float]]:
    return [(one.index, one.relevance_score) for one in results]


def test_voyage(url: str, expected: list[tuple[int, float]]) -> None:
    voyageai = pytest.importorskip("voyageai", reason="comes with the extra dialects")
    client = voyageai.Client(api_key=KEY, base_url=f"{url}/v1")
    answer = client.rerank(QUERY, TEXTS, "rerank-2.5", top_k=2)
    assert pairs(answer.results) == expected[:2]
    assert answer.results[0].document == TEXTS[expected[0][0]]
    assert answer.total_tokens > 0
    with pytest.raises(voyageai.error.InvalidRequestError, match="top_k must be at least 1"):
        client.rerank(QUERY, TEXTS, "rerank-2.5", top_k=0)


def test_cohere(url: str, expected: list[tuple[int, float]]) -> None:
    cohere = pytest.importorskip("cohere", reason="comes with the extra dialects")
    newer = cohere.ClientV2(api_key=KEY, base_url=url)
    older = cohere.Client(api_key=KEY, base_url=url)
    answer = newer.rerank(model="rerank-v3.5", query=QUERY, documents=TEXTS, top_n=2)
    assert pairs(answer.results) == expected[:2]
    assert answer.meta.billed_units.search_units == 1
    answer = older.rerank(
        model="rerank-v3.5",
        query=QUERY,
        documents=TEXTS,
        return_documents=True,
        rank_fields=["text"],
    )
    assert pairs(answer.results) == expected
    assert answer.results[0].document.text == TEXTS[expected[0][0]]
    with pytest.raises(cohere.BadRequestError, match="ranked by their text"):
        older.rerank(model="rerank-v3.5", query=QUERY, documents=TEXTS, rank_fields=["title"])
    for client in (newer, older):
        client._client_wrapper.httpx_client.httpx_client.close()


def test_haystack(
    url: str, expected: list[tuple[int, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HAYSTACK_TELEMETRY_ENABLED", "False")
    rankers = pytest.importorskip(
        "haystack_integrations.components.rankers.jina", reason="the extra dialects"
    )
    from haystack import Document
    from haystack.utils import Secret

    ranker = rankers.JinaRanker(
        api_key=Secret.from_token(KEY), base_url=f"{url}/v1/rerank", model="served"
    )
    found = ranker.run(QUERY, [Document(content=text) for text in TEXTS])["documents"]
    assert [document.content for document in found] == [TEXTS[index] for index, _ in expected]
    assert [document.score for document in found] == [score for _, score in expected]


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_cut_documents(api: httpx.Client, path: str) -> None:
    """Of vLLM and Cohere: `one two` is what four tokens leave."""
    long, short = ["one two three four"], ["one two"]
    body = {"query": QUERY, "truncate_prompt_tokens": 4}
    cut = api.post(path, json=body | {"documents": long}).raise_for_status()
    whole = api.post(path, json=body | {"documents": short}).json()
    assert cut.json()["results"] == whole["results"]
    assert cut.headers["x-lln-dropped-tokens"] == "0:2"
    assert cut.json()["usage"]["dropped_tokens"] == 2


def test_infinity_answers_with_strings(
    api: httpx.Client, expected: list[tuple[int, float]]
) -> None:
    body = {"query": QUERY, "documents": TEXTS, "return_documents": True, "top_n": 1}
    answer = api.post("/rerank", json=body).json()
    assert answer["results"][0]["document"] == TEXTS[expected[0][0]]
    assert api.post("/v2/rerank", json=body).json()["results"][0]["document"] == {
        "text": TEXTS[expected[0][0]]
    }
    own = api.post("/rerank", json={"query": QUERY, "texts": TEXTS}).json()
    assert [one["index"] for one in own] == [index for index, _ in expected]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"documents": ["a", ""]}, "documents[1]"),
        ({"documents": []}, "documents"),
        ({"documents": ["a"], "top_n": -1}, "top_n"),
        ({"documents": ["a"], "instruction": "be kind"}, "instruction"),
        ({"documents": ["a"], "max_tokens_per_doc": 0}, "max_tokens_per_doc"),
        ({"documents": ["a"], "max_chunks_per_doc": 0}, "max_chunks_per_doc"),
        ({"documents": ["a"], "truncation_side": "up"}, "truncation_side"),
        (
            {"documents": ["a"], "truncate_prompt_tokens": 8, "max_tokens_per_doc": 9},
            "max_tokens_per_doc",
        ),
        ({"documents": [{"title": "a"}]}, None),
    ],
)
def test_what_is_refused(api: httpx.Client, body: dict[str, Any], param: str | None) -> None:
    answer = api.post("/v2/rerank", json={"query": QUERY, **body})
    assert 400 <= answer.status_code < 500
    if param is not None:
        assert answer.json()["error"]["param"] == param
    assert answer.json()["message"] == answer.json()["error"]["message"]
