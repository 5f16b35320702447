"""text-embeddings-inference's routes, as its clients use them."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError

from tests.service.outside import vectors_of

TEXTS = ["The cat sat on the mat.", "A much longer text, of two clauses, about nothing."]


def test_embed_gives_a_bare_list_of_the_same_vectors(http: httpx.Client) -> None:
    response = http.post("/embed", json={"inputs": TEXTS})
    assert response.json() == vectors_of(http, input=TEXTS)
    assert int(response.headers["x-compute-tokens"]) > 0
    assert response.headers["x-inference-time"].isdecimal()


def test_a_lone_text_is_a_list_of_one(http: httpx.Client) -> None:
    assert http.post("/embed", json={"inputs": TEXTS[0]}).json() == vectors_of(
        http, input=[TEXTS[0]]
    )


def test_token_ids_are_inputs_too(http: httpx.Client) -> None:
    ids = http.post("/v1/tokenize", json={"text": TEXTS[0]}).json()["ids"][1:-1]
    [by_ids] = http.post("/embed", json={"inputs": [ids]}).json()
    [by_text] = http.post("/embed", json={"inputs": [TEXTS[0]]}).json()
    assert by_ids == pytest.approx(by_text, abs=2e-6)


def test_options(http: httpx.Client) -> None:
    [short] = http.post("/embed", json={"inputs": TEXTS[0], "dimensions": 7}).json()
    assert len(short) == 7
    assert np.linalg.norm(short) == pytest.approx(1, abs=1e-5)
    [raw] = http.post("/embed", json={"inputs": TEXTS[0], "normalize": False}).json()
    assert np.linalg.norm(raw) > 1.1
    named = {"inputs": TEXTS[0], "model": "sentence-transformers/all-MiniLM-L6-v2"}
    assert len(http.post("/embed", json=named).json()[0]) == 384


def test_embed_all_gives_the_states_that_the_vector_is_the_mean_of(http: httpx.Client) -> None:
    states = http.post("/embed_all", json={"inputs": TEXTS}).json()
    lengths = [http.post("/v1/tokenize", json={"text": text}).json()["count"] for text in TEXTS]
    assert [len(tokens) for tokens in states] == lengths
    pooled = http.post("/embed", json={"inputs": TEXTS, "normalize": False}).json()
    for tokens, vector in zip(states, pooled, strict=True):
        assert np.mean(tokens, axis=0) == pytest.approx(vector, abs=1e-5)


def test_truncation_by_request(start_server: Any) -> None:
    server = start_server(
        LLN_MODELS="default",
        LLN_ENGINE__MAX_TEXT_TOKENS="16",
        LLN_ENGINE__MAX_TOKEN_STATES="20",
    )
    numbers = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
    words = [*numbers, *numbers]
    with httpx.Client(base_url=server.http_url) as http:

        def embed(words: list[str], **options: Any) -> Any:
            return http.post("/embed", json={"inputs": " ".join(words), **options}).json()

        assert embed(words)["error"]["code"] == "text_too_long"
        kept_start = embed(words[:14])
        assert embed(words, truncate=True) == kept_start
        assert embed(words, truncate=True, truncation_direction="Right") == kept_start
        assert embed(words, truncate=True, truncation_direction="left") == embed(words[-14:])

        too_many = http.post("/embed_all", json={"inputs": [" ".join(numbers)] * 2})
        error = too_many.json()["error"]
        assert too_many.status_code == 400
        assert (error["code"], error["limit"], error["actual"]) == ("too_many_token_states", 20, 24)


def test_info_has_the_fields_that_clients_look_for(http: httpx.Client) -> None:
    info = http.get("/info").json()
    assert info["model_id"] == "default"
    assert info["model_type"] == {"embedding": {"pooling": "mean"}}
    assert info["model_dtype"] == "float32"
    assert info["max_input_length"] == 1_048_576
    assert info["max_client_batch_size"] == 2_048
    assert info["auto_truncate"] is False


def test_health(http: httpx.Client) -> None:
    assert http.get("/health").status_code == 200


def test_huggingface_hubs_client(server: Any, http: httpx.Client) -> None:
    client = InferenceClient(server.http_url + "/embed")
    found = client.feature_extraction(TEXTS, normalize=True, truncate=True)
    assert found.shape == (2, 384)
    assert found == pytest.approx(np.array(vectors_of(http, input=TEXTS)), abs=1e-6)
    with pytest.raises(HfHubHTTPError, match="empty string"):
        client.feature_extraction("")
