"""LLNClient against a server: sentence-transformers' shape, and its very vectors."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from service.client import LLNClient, LLNClientError

PUBLISHED = "sentence-transformers/all-MiniLM-L6-v2"
TEXTS = ["The cat sat on the mat.", "Nothing of note happened.", "naïve 北京 🦊"]


@pytest.fixture(scope="module")
def client(server: Any) -> LLNClient:
    return LLNClient(server.http_url, model=PUBLISHED)


def test_vectors_are_those_of_sentence_transformers(client: LLNClient, minilm_folder: Path) -> None:
    theirs = SentenceTransformer(str(minilm_folder), device="cpu").encode(TEXTS)
    assert client.encode(TEXTS) == pytest.approx(theirs, abs=2e-5)


def test_the_shape_is_that_of_sentence_transformers() -> None:
    ours = set(inspect.signature(LLNClient.encode).parameters) - {"truncate"}
    assert ours <= set(inspect.signature(SentenceTransformer.encode).parameters)
    for name in ("encode_query", "encode_document", "similarity", "get_embedding_dimension"):
        assert hasattr(SentenceTransformer, name)
        assert hasattr(LLNClient, name)


def test_encode(client: LLNClient) -> None:
    one = client.encode(TEXTS[0])
    assert isinstance(one, np.ndarray)
    assert one.shape == (384,)
    in_batches = client.encode(TEXTS, batch_size=2)
    assert in_batches == pytest.approx(client.encode(TEXTS), abs=2e-6)
    assert isinstance(client.encode(TEXTS, convert_to_numpy=False), list)
    assert np.shape(client.encode([])) == (0, 384)
    assert np.shape(client.encode(TEXTS, truncate_dim=9)) == (3, 9)
    assert np.linalg.norm(client.encode(TEXTS[0], normalize_embeddings=False)) > 1.1
    assert client.encode_query(TEXTS) == pytest.approx(client.encode(TEXTS), abs=2e-6)
    assert client.encode_document(TEXTS[0]).shape == (384,)


def test_similarity(client: LLNClient) -> None:
    vectors = client.encode(TEXTS)
    assert isinstance(vectors, np.ndarray)
    cosines = client.similarity(vectors, vectors[0])
    assert cosines.shape == (3, 1)
    assert cosines[0, 0] == pytest.approx(1, abs=1e-5)


def test_what_the_model_is(client: LLNClient, server: Any) -> None:
    assert client.get_sentence_embedding_dimension() == 384
    assert client.max_seq_length == 65_536
    assert LLNClient(server.http_url).max_seq_length == 1_048_576


def test_refusals_keep_their_fields(client: LLNClient, server: Any) -> None:
    with pytest.raises(LLNClientError, match=r"input\[1\] is an empty string") as refusal:
        client.encode(["a", ""])
    assert (refusal.value.status, refusal.value.code) == (400, "empty_text")
    assert refusal.value.param == "input[1]"
    with pytest.raises(LLNClientError, match="'nope' is not served here"):
        _ = LLNClient(server.http_url, model="nope").max_seq_length


@pytest.mark.parametrize("name", ["my model", "mödel", "a?b", "a#b", "a%2Fb", "of/a maker"])
def test_any_name_of_a_model_reaches_the_server(server: Any, name: str) -> None:
    with pytest.raises(LLNClientError) as refusal:
        LLNClient(server.http_url, model=name).get_embedding_dimension()
    assert (refusal.value.status, refusal.value.code) == (404, "model_not_found")
    assert refusal.value.actual == name


def test_a_full_server_is_waited_for_until_patience_ends(launch_server: Any) -> None:
    server = launch_server(LLN_MODELS="default", LLN_MAX_OPEN_REQUESTS="1")
    assert np.shape(LLNClient(server.http_url, timeout_s=20).encode(TEXTS)) == (3, 384)
