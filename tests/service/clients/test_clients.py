"""Clients: LLNClient, in the shape of sentence-transformers; OpenAI for JavaScript; LangChain."""

from __future__ import annotations

import http.client
import inspect
import json
import pickle
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from pydantic import SecretStr

from service.client import LLNClient, LLNClientError, LLNConnectionError
from tests.service.outside import free_port, vectors_of

PUBLISHED = "sentence-transformers/all-MiniLM-L6-v2"
TEXTS = ["The cat sat on the mat.", "Nothing of note happened.", "naïve 北京 🦊"]


@pytest.fixture(scope="module")
def client(server: Any) -> LLNClient:
    return LLNClient(server.http_url, model=PUBLISHED)


def test_vectors_are_those_of_sentence_transformers(client: LLNClient, minilm_folder: Path) -> None:
    from sentence_transformers import SentenceTransformer

    theirs = SentenceTransformer(str(minilm_folder), device="cpu").encode(TEXTS)
    assert client.encode(TEXTS) == pytest.approx(theirs, abs=2e-5)


def test_texts_without_tokens_have_the_vectors_of_sentence_transformers(
    client: LLNClient, minilm_folder: Path
) -> None:
    from sentence_transformers import SentenceTransformer

    blank = [" ", "\n\n", "\x00"]
    theirs = SentenceTransformer(str(minilm_folder), device="cpu").encode(blank)
    assert client.encode(blank) == pytest.approx(theirs, abs=2e-5)


def test_the_interface_is_that_of_sentence_transformers() -> None:
    from sentence_transformers import SentenceTransformer

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


@pytest.mark.parametrize(
    ("inputs", "kind"),
    [({"a": 1}, "dict"), (b"ab", "bytes"), (7, "int"), ([7592, 2088], "list with numbers")],
)
def test_what_is_no_list_of_texts_is_not_embedded(
    client: LLNClient, inputs: Any, kind: str
) -> None:
    with pytest.raises(TypeError, match=f"must be a text or a list of texts, got {kind}$"):
        client.encode(inputs)


def test_similarity(client: LLNClient) -> None:
    vectors = client.encode(TEXTS)
    assert isinstance(vectors, np.ndarray)
    cosines = client.similarity(vectors, vectors[0])
    assert cosines.shape == (3, 1)
    assert cosines[0, 0] == pytest.approx(1, abs=1e-5)


def test_model_properties(client: LLNClient, server: Any) -> None:
    assert client.get_sentence_embedding_dimension() == 384
    assert client.max_seq_length == 65_536
    assert LLNClient(server.http_url).max_seq_length == 1_048_576


def test_errors_have_the_fields_of_the_envelope(client: LLNClient, server: Any) -> None:
    with pytest.raises(LLNClientError, match=r"input\[1\] is an empty string") as refusal:
        client.encode(["a", ""])
    assert (refusal.value.status, refusal.value.code) == (400, "empty_text")
    assert refusal.value.param == "input[1]"
    with pytest.raises(LLNClientError, match=r"input\[4\] is an empty string") as refusal:
        client.encode(["a", "b", "c", "d", ""], batch_size=2)
    assert (refusal.value.status, refusal.value.param) == (400, "input[4]")
    with pytest.raises(LLNClientError, match="unknown model 'nope'"):
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


@pytest.mark.parametrize("dtype", ["float16", "int8", "ubinary"])
def test_documents_in_fewer_bytes(client: LLNClient, http: httpx.Client, dtype: str) -> None:
    chunking = {"type": "fixed", "tokens": 16}
    text = " ".join(TEXTS)
    body = {"text": text, "model": PUBLISHED, "chunking": chunking, "output_dtype": dtype}
    answer = http.post("/v1/documents", json=body).json()
    found = client.embed_document(text, chunking=chunking, output_dtype=dtype)
    kind = {"float16": "f2", "int8": "i1", "ubinary": "u1"}[dtype]
    assert found.vector.dtype == kind
    assert np.array_equal(found.vector, np.array(answer["vector"], kind))
    for own, other in zip(found.chunks, answer["chunks"], strict=True):
        assert np.array_equal(own["vector"], np.array(other["vector"], kind))


@pytest.fixture(scope="module")
def narrow(launch_server: Any) -> Any:
    return launch_server(
        LLN_MODELS="default", LLN_MAX_OPEN_REQUESTS="1", LLN_MAX_BODY_BYTES="12000000"
    )


@pytest.mark.parametrize("size", [1, 10_000_000])
def test_a_full_server_is_retried_until_the_timeout(narrow: Any, size: int) -> None:
    """The server answers by the headers and closes the connection before the body is sent."""
    with placed(narrow):
        with pytest.raises(LLNClientError, match="requests are open") as refusal:
            LLNClient(narrow.http_url, timeout_s=0.5).encode("x" * size)
        assert refusal.value.code == "too_many_requests"
        threading.Timer(1, leave_the_place.set).start()
        assert np.shape(LLNClient(narrow.http_url, timeout_s=20).encode("x" * size)) == (384,)


leave_the_place = threading.Event()


@contextmanager
def placed(server: Any) -> Iterator[None]:
    """Occupies the only request slot, with a body that is never sent, until stopped."""
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


def test_a_text_above_the_limit_is_rejected_with_both_numbers(narrow: Any) -> None:
    with pytest.raises(LLNClientError, match="the limit is 12000000") as refusal:
        LLNClient(narrow.http_url).encode("x" * 30_000_000)
    assert (refusal.value.status, refusal.value.code) == (413, "body_too_large")
    assert refusal.value.limit == 12_000_000


def test_many_large_texts_are_split_over_requests(narrow: Any) -> None:
    texts = [f"{number} {'x' * 1_000_000}" for number in range(30)]
    vectors = LLNClient(narrow.http_url, max_request_bytes=8_000_000).encode(texts)
    assert np.shape(vectors) == (30, 384)


def test_an_unreachable_server() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(LLNConnectionError, match=f"{url}.*refused") as refusal:
        LLNClient(url).encode("a")
    assert isinstance(refusal.value, ConnectionError)
    assert isinstance(refusal.value.__cause__, urllib.error.URLError)
    assert refusal.value.status is None


def test_a_host_whose_name_no_host_has() -> None:
    with pytest.raises(LLNConnectionError, match=r"http://example\.\.org: .*label"):
        LLNClient("http://example..org").encode("a")


@pytest.mark.parametrize("url", ["localhost:8000", "", "ftp://example.org", "http://", None])
def test_an_address_that_is_none_is_refused_at_once(url: Any) -> None:
    with pytest.raises(ValueError, match=r"must be like http://localhost:8000, got ") as refusal:
        LLNClient(url)
    assert repr(url) in str(refusal.value)


@pytest.mark.parametrize("key", ["0123456789abcdef\n", "0123456789abcdéf"])
def test_a_key_that_no_header_may_have_is_not_shown(key: str) -> None:
    """A file with a key ends with the end of a line."""
    with pytest.raises(ValueError, match="a character that no key may have") as refusal:
        LLNClient(api_key=key)
    assert "0123" not in str(refusal.value)


@contextmanager
def answering(*answers: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """A server that gives these answers, one for each connection, and what it was sent."""
    heard: list[bytes] = []

    def serve(listener: socket.socket) -> None:
        for answer in answers:
            connected, _ = listener.accept()
            with connected:
                heard.append(connected.recv(65_536))
                connected.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", heard


def test_no_redirect_gets_the_key() -> None:
    with answering(b"HTTP/1.1 200 OK\r\n\r\n{}") as (elsewhere, heard):
        head = f"HTTP/1.1 301 Moved\r\nlocation: {elsewhere}/v1/embeddings\r\n\r\n"
        with (
            answering(head.encode()) as (url, _),
            pytest.raises(LLNClientError, match=f"{url} redirects to {elsewhere}") as found,
        ):
            LLNClient(url, api_key="0123456789abcdef").encode("a text")
    assert (found.value.status, found.value.code) == (301, "redirected")
    assert heard == []


def test_an_error_whose_body_does_not_arrive_keeps_its_status() -> None:
    head = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 100\r\n\r\n{"
    with answering(head) as (url, _), pytest.raises(LLNClientError, match="status 400") as found:
        LLNClient(url).encode("a text")
    assert found.value.status == 400


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (b"", http.client.RemoteDisconnected),
        (b"SSH-2.0\r\n", http.client.BadStatusLine),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{", http.client.IncompleteRead),
    ],
)
def test_a_connection_that_breaks_is_told_with_the_address_and_the_cause(
    answer: bytes, cause: type[Exception]
) -> None:
    with answering(answer) as (url, _), pytest.raises(LLNConnectionError, match=url) as found:
        LLNClient(url).encode("a text")
    assert isinstance(found.value.__cause__, cause)


def test_a_server_that_says_nothing_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(LLNConnectionError, match=f"{url}.*timed out") as found:
            LLNClient(url, timeout_s=0.2).encode("a text")
    assert isinstance(found.value.__cause__, TimeoutError)


@pytest.mark.parametrize("status", [200, 502])
def test_a_page_of_a_proxy_is_told_with_the_address(status: int) -> None:
    answer = f"HTTP/1.1 {status} Status\r\ncontent-type: text/html\r\n\r\n<html>Sign in</html>"
    with answering(answer.encode()) as (url, _), pytest.raises(LLNClientError, match=url) as found:
        LLNClient(url).encode("a text")
    assert found.value.status == status
    assert found.value.code == ("not_json" if status == 200 else None)


def test_errors_get_from_one_process_to_another(client: LLNClient) -> None:
    with pytest.raises(LLNClientError) as refusal:
        client.encode(["a", ""])
    copied = pickle.loads(pickle.dumps(refusal.value))
    assert vars(copied) == vars(refusal.value)
    assert str(copied) == str(refusal.value)
    with pytest.raises(LLNConnectionError) as lost:
        LLNClient(f"http://127.0.0.1:{free_port()}").encode("a")
    assert str(pickle.loads(pickle.dumps(lost.value))) == str(lost.value)


ROOT = Path(__file__).parents[3]


def test_langchain(server: Any, http: httpx.Client) -> None:
    from langchain_openai import OpenAIEmbeddings

    embeddings = OpenAIEmbeddings(
        base_url=f"{server.http_url}/v1",
        api_key=SecretStr("unused"),
        model="default",
        # Otherwise it sends the token ids of a tokenizer of OpenAI's.
        check_embedding_ctx_length=False,
    )
    expected = vectors_of(http, input=TEXTS[:2])
    for found, vector in zip(embeddings.embed_documents(TEXTS[:2]), expected, strict=True):
        assert found == pytest.approx(vector, abs=1e-6)
    assert embeddings.embed_query(TEXTS[0]) == pytest.approx(expected[0], abs=2e-6)


@pytest.fixture(scope="module")
def node_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the script and OpenAI's package for JavaScript."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("Node.js is not installed")
    folder = tmp_path_factory.mktemp("node")
    for file in (ROOT / "tests" / "javascript").iterdir():
        shutil.copy(file, folder)
    command = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts"]
    installed = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    if installed.returncode:
        pytest.skip(f"npm cannot reach a registry: {installed.stderr.strip()[-200:]}")
    return folder


@pytest.mark.slow
def test_openai_for_javascript(node_folder: Path, server: Any, http: httpx.Client) -> None:
    command = ["node", "openai_client.mjs", f"{server.http_url}/v1", *TEXTS[:2]]
    finished = subprocess.run(command, cwd=node_folder, capture_output=True, text=True, timeout=60)
    assert finished.returncode == 0, finished.stderr
    found = json.loads(finished.stdout)
    expected = vectors_of(http, input=TEXTS[:2])
    for vector, wanted in zip(found["vectors"], expected, strict=True):
        assert vector == pytest.approx(wanted, abs=1e-6)
    assert found["tokens"] > 0
    assert found["refusal"] == {"status": 400, "code": "empty_text", "param": "input[0]"}
