"""LLNClient against a server: sentence-transformers' shape, and its very vectors."""

from __future__ import annotations

import inspect
import socket
import threading
import time
import urllib.error
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from service.client import LLNClient, LLNClientError
from tests.service.outside import free_port

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


def test_vectors_can_be_written_to(client: LLNClient) -> None:
    alone, listed = client.encode("a"), client.encode(["a"], convert_to_numpy=False)[0]
    for vector in (alone, listed):
        assert isinstance(vector, np.ndarray)
        vector /= 2


@pytest.fixture(scope="module")
def narrow(launch_server: Any) -> Any:
    return launch_server(
        LLN_MODELS="default", LLN_MAX_OPEN_REQUESTS="1", LLN_MAX_BODY_BYTES="12000000"
    )


@pytest.mark.parametrize("size", [1, 10_000_000])
def test_a_full_server_is_waited_for_until_patience_ends(narrow: Any, size: int) -> None:
    """It answers by the headers, and hangs up on a large request before that is sent."""
    with placed(narrow):
        with pytest.raises(LLNClientError, match="requests are open") as refusal:
            LLNClient(narrow.http_url, timeout_s=0.5).encode("x" * size)
        assert refusal.value.code == "too_many_requests"
        threading.Timer(1, leave_the_place.set).start()
        assert np.shape(LLNClient(narrow.http_url, timeout_s=20).encode("x" * size)) == (384,)


leave_the_place = threading.Event()


@contextmanager
def placed(server: Any) -> Iterator[None]:
    """Somebody has the only place, by not sending what they announced, until told to leave."""
    host, port = server.http_url.removeprefix("http://").split(":")
    leave_the_place.clear()

    def hold() -> None:
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(
                b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"
            )
            leave_the_place.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    time.sleep(0.3)
    try:
        yield
    finally:
        leave_the_place.set()
        holder.join()


def test_a_text_too_large_is_refused_with_its_numbers(narrow: Any) -> None:
    with pytest.raises(LLNClientError, match="12000000 are allowed") as refusal:
        LLNClient(narrow.http_url).encode("x" * 30_000_000)
    assert (refusal.value.status, refusal.value.code) == (413, "body_too_large")
    assert refusal.value.limit == 12_000_000


def test_many_large_texts_go_in_requests_that_are_read(narrow: Any) -> None:
    texts = [f"{number} {'x' * 1_000_000}" for number in range(30)]
    vectors = LLNClient(narrow.http_url, max_request_bytes=8_000_000).encode(texts)
    assert np.shape(vectors) == (30, 384)


def test_a_server_that_is_not_there() -> None:
    with pytest.raises(urllib.error.URLError, match="refused"):
        LLNClient(f"http://127.0.0.1:{free_port()}").encode("a")
