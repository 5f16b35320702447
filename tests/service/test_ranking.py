"""Ranking over HTTP and gRPC: text-embeddings-inference's routes, and the shared form."""

from __future__ import annotations

from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from huggingface_hub import InferenceClient

from service.http.schemas.responses.ranking import RankAnswer, RankList
from service.pb.tei.v1 import tei_pb2 as pb
from tests.service.conftest import RunningServer, StartServer
from tests.service.outside import vectors_of
from tests.service.stubs import tei_rank_stub, tei_tokens_stub

QUERY = "Where do otters live?"
FILLER = "The price of tea rose in spring, and fell again in autumn. " * 42
ANSWER = "Otters live in burrows on the banks of rivers."
LONG = f"{FILLER}{ANSWER} {FILLER}"
TEXTS = ["The price of tea rose.", "Otters make their homes by rivers.", LONG]


def ask(http: httpx.Client, path: str, body: Any) -> Any:
    answer = http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_tei_ranks_texts(http: httpx.Client) -> None:
    answer = http.post("/rerank", json={"query": QUERY, "texts": TEXTS, "raw_scores": True})
    RankList.model_validate_json(answer.content, strict=True)
    ranks = answer.json()

    assert [rank["index"] for rank in ranks] == [1, 2, 0]
    assert answer.headers["x-lln-scoring"] == "vectors"
    query, *vectors = vectors_of(http, input=[QUERY, *TEXTS[:2]])
    by_index = {rank["index"]: rank["score"] for rank in ranks}
    assert by_index[0] == pytest.approx(np.dot(query, vectors[0]), abs=1e-5)
    assert by_index[1] == pytest.approx(np.dot(query, vectors[1]), abs=1e-5)
    assert "text" not in ranks[0]


@pytest.mark.parametrize("scoring", ["vectors", "tokens"])
def test_a_long_text_is_scored_by_its_best_passage(http: httpx.Client, scoring: str) -> None:
    found = ask(http, "/rerank", {"query": QUERY, "texts": TEXTS, "scoring": scoring})
    passage = next(rank for rank in found if rank["index"] == 2)["passage"]
    assert ANSWER[:20] in LONG[passage["start"] : passage["end"]]
    assert passage["end"] - passage["start"] < len(LONG) / 2
    short = next(rank for rank in found if rank["index"] == 0)["passage"]
    assert short == {"start": 0, "end": len(TEXTS[0])}


def test_late_interaction_is_the_mean_of_the_best_cosines(http: httpx.Client) -> None:
    body = {"query": QUERY, "texts": TEXTS[:2], "scoring": "tokens", "raw_scores": True}
    scores = {rank["index"]: rank["score"] for rank in ask(http, "/rerank", body)}
    states = [np.array(rows) for rows in ask(http, "/embed_all", {"inputs": [QUERY, *TEXTS[:2]]})]
    query, *texts = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in states)
    expected = [float((query @ text.T).max(1).mean()) for text in texts]
    assert [scores[0], scores[1]] == pytest.approx(expected, abs=1e-5)


def test_scores_are_from_0_to_1_unless_raw(http: httpx.Client) -> None:
    body = {"query": QUERY, "texts": TEXTS[:2], "return_text": True}
    shown = ask(http, "/rerank", body)
    raw = ask(http, "/rerank", {**body, "raw_scores": True})
    assert [one["text"] for one in shown] == [TEXTS[1], TEXTS[0]]
    for one, other in zip(shown, raw, strict=True):
        assert one["score"] == pytest.approx((1 + other["score"]) / 2)


def test_the_shared_form(http: httpx.Client) -> None:
    documents = [TEXTS[0], {"text": TEXTS[1]}, LONG]
    body = {"query": QUERY, "documents": documents, "top_n": 2, "return_documents": True}
    answer = http.post("/v1/rerank", json=body)
    RankAnswer.model_validate_json(answer.content, strict=True)
    found = answer.json()

    assert [one["index"] for one in found["results"]] == [1, 2]
    assert found["results"][0]["document"] == {"text": TEXTS[1]}
    assert found["scoring"] == "vectors"
    assert found["usage"]["total_tokens"] > 1000


def test_equal_scores_keep_the_callers_order(http: httpx.Client) -> None:
    found = ask(http, "/rerank", {"query": QUERY, "texts": [TEXTS[0]] * 4})
    assert [one["index"] for one in found] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("path", "body", "status", "code", "param"),
    [
        ("/rerank", {"query": "", "texts": ["x"]}, 400, "empty_text", "query"),
        ("/rerank", {"query": "x", "texts": []}, 400, "empty_input", "texts"),
        ("/rerank", {"query": "x", "texts": ["y", ""]}, 400, "empty_text", "texts[1]"),
        ("/rerank", {"query": "x", "texts": ["y"] * 2049}, 400, "too_many_inputs", "texts"),
        ("/rerank", {"query": "x", "texts": ["y", 3]}, 422, "invalid_field", "texts[1]"),
        (
            "/rerank",
            {"query": "x", "texts": ["y"], "scoring": "z"},
            422,
            "invalid_field",
            "scoring",
        ),
        ("/v1/rerank", {"query": "x", "documents": ["y", ""]}, 400, "empty_text", "documents[1]"),
        (
            "/v1/rerank",
            {"query": "x", "documents": ["y"], "top_n": 0},
            400,
            "invalid_top_n",
            "top_n",
        ),
        (
            "/rerank",
            {"query": "x", "texts": ["y", "z " * 17_000], "scoring": "tokens"},
            400,
            "too_many_token_states",
            "texts[1]",
        ),
        (
            "/rerank",
            {"query": "z " * 17_000, "texts": ["y"], "scoring": "tokens"},
            400,
            "too_many_token_states",
            "query",
        ),
        (
            "/similarity",
            {"inputs": {"source_sentence": "x", "sentences": ["y", ""]}},
            400,
            "empty_text",
            "inputs.sentences[1]",
        ),
        (
            "/similarity",
            {"inputs": {"source_sentence": "", "sentences": ["y"]}},
            400,
            "empty_text",
            "inputs.source_sentence",
        ),
        (
            "/similarity",
            {"inputs": {"source_sentence": "x", "sentences": []}},
            400,
            "empty_input",
            "inputs.sentences",
        ),
        (
            "/similarity",
            {"inputs": {"source_sentence": "x", "sentences": ["y"] * 2_048}},
            400,
            "too_many_inputs",
            "inputs",
        ),
        ("/tokenize", {"inputs": ["x", ""]}, 400, "empty_text", "inputs[1]"),
        ("/tokenize", {"inputs": []}, 400, "empty_input", "inputs"),
        ("/tokenize", {"inputs": "x", "prompt_name": "q"}, 400, "unknown_prompt", "prompt_name"),
        ("/decode", {"ids": [[101], [999_999]]}, 400, "invalid_token_id", "ids[1]"),
        ("/decode", {"ids": "101"}, 400, "invalid_type", "ids"),
        ("/decode", {"ids": [{"a": 1}]}, 400, "invalid_type", "ids[0]"),
        ("/decode", {"ids": [["x"]]}, 400, "invalid_token_id", "ids[0]"),
        ("/predict", {"inputs": "x"}, 501, "not_a_classifier", None),
    ],
)
def test_refusals(
    http: httpx.Client, path: str, body: Any, status: int, code: str, param: str | None
) -> None:
    answer = http.post(path, json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (status, code, param), error


def test_similarity_of_sentences(http: httpx.Client, server: RunningServer) -> None:
    client = InferenceClient(f"{server.http_url}/similarity")
    found = client.sentence_similarity(QUERY, other_sentences=TEXTS)
    query, *others = vectors_of(http, input=[QUERY, *TEXTS])
    assert found == pytest.approx([float(np.dot(query, other)) for other in others], abs=1e-5)


def test_tokens_and_back(http: httpx.Client) -> None:
    text = "naïve 北京 otters"
    [tokens] = ask(http, "/tokenize", {"inputs": text})
    ours = ask(http, "/v1/tokenize", {"text": text})
    assert [one["id"] for one in tokens] == ours["ids"]
    assert (tokens[0]["special"], tokens[0]["start"], tokens[0]["text"]) == (True, None, "[CLS]")
    for one in tokens[1:-1]:
        assert one["text"] == text[one["start"] : one["stop"]]
    [bare, other] = ask(http, "/tokenize", {"inputs": [text, "x"], "add_special_tokens": False})
    assert bare == tokens[1:-1]
    assert len(other) == 1

    assert ask(http, "/decode", {"ids": ours["ids"]}) == ["naive 北 京 otters"]
    kept = ask(http, "/decode", {"ids": [ours["ids"]] * 2, "skip_special_tokens": False})
    assert kept == ["[CLS] naive 北 京 otters [SEP]"] * 2


def test_a_post_to_the_root_names_the_route(http: httpx.Client) -> None:
    answer = http.post("/", json={"inputs": "x"})
    assert answer.status_code == 405
    assert "/embed" in answer.json()["error"]["message"]


def test_ranks_over_grpc(http: httpx.Client, channel: grpc.Channel) -> None:
    stub = tei_rank_stub(channel)
    request = pb.RerankRequest(query=QUERY, texts=TEXTS, return_text=True)
    answer = stub.Rerank(request)
    over_http = ask(http, "/rerank", {"query": QUERY, "texts": TEXTS})
    assert [rank.index for rank in answer.ranks] == [one["index"] for one in over_http]
    assert [rank.score for rank in answer.ranks] == pytest.approx(
        [one["score"] for one in over_http], abs=1e-6
    )
    assert answer.ranks[0].text == TEXTS[1]
    assert answer.metadata.compute_tokens > 1000

    pieces = (pb.RerankStreamRequest(query=QUERY, text=text, raw_scores=True) for text in TEXTS)
    streamed = stub.RerankStream(pieces)
    assert [rank.index for rank in streamed.ranks] == [1, 2, 0]
    assert not streamed.ranks[0].HasField("text")
    assert streamed.ranks[0].score == pytest.approx(2 * answer.ranks[0].score - 1, abs=1e-6)


@pytest.mark.parametrize(
    ("requests", "code", "param"),
    [
        ([], "empty_input", "texts"),
        ([("x", "y"), ("z", "y")], "invalid_field", "query"),
        ([("x", "y"), ("x", "")], "empty_text", "texts[1]"),
    ],
)
def test_refused_streams_of_texts(
    channel: grpc.Channel, requests: list[tuple[str, str]], code: str, param: str
) -> None:
    messages = (pb.RerankStreamRequest(query=query, text=text) for query, text in requests)
    with pytest.raises(grpc.RpcError) as caught:
        tei_rank_stub(channel).RerankStream(messages)
    error: Any = caught.value
    metadata = dict(error.trailing_metadata())
    assert (metadata["lln-error-code"], metadata["lln-error-param"]) == (code, param)


def test_tokens_of_several_texts_are_held_to_the_limit_of_one(start_server: StartServer) -> None:
    server = start_server(LLN_MODELS="default", LLN_ENGINE__MAX_TEXT_TOKENS="1000")
    answer = httpx.post(f"{server.http_url}/tokenize", json={"inputs": ["a " * 600] * 2})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "text_too_long", "inputs")
    assert (error["limit"], error["actual"]) == (1_000, 1_204)


def test_tokens_over_grpc(http: httpx.Client, channel: grpc.Channel) -> None:
    stub = tei_tokens_stub(channel)
    [expected] = ask(http, "/tokenize", {"inputs": ANSWER})
    tokens = stub.Tokenize(pb.EncodeRequest(inputs=ANSWER, add_special_tokens=True)).tokens
    assert [token.id for token in tokens] == [one["id"] for one in expected]
    assert [token.text for token in tokens] == [one["text"] for one in expected]
    assert not tokens[0].HasField("start")
    ids = [token.id for token in tokens]
    request = pb.DecodeRequest(ids=ids, skip_special_tokens=True)
    assert stub.Decode(request).text == ANSWER.lower().replace(".", " .").replace(" .", ".")
    streamed = list(stub.DecodeStream(iter([request, request])))
    assert [one.text for one in streamed] == [stub.Decode(request).text] * 2
