"""Voyage's client, as released, and its requests: only the address and the key are ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.service.conftest import RunningServer
from tests.service.dialects.conftest import CHUNKS, KEY, MAX_TOKENS, as_array

voyageai = pytest.importorskip("voyageai", reason="comes with the extra dialects")

MODEL = "voyage-context-4"
DOCUMENT = "".join(CHUNKS)


@pytest.fixture
def client(url: str) -> Any:
    return voyageai.Client(api_key=KEY, base_url=f"{url}/v1")


def post(api: httpx.Client, **body: Any) -> httpx.Response:
    return api.post("/v1/contextualizedembeddings", json={"model": MODEL, **body})


def refused(api: httpx.Client, **body: Any) -> dict[str, Any]:
    answer = post(api, **body)
    assert 400 <= answer.status_code < 500, answer.text
    document = answer.json()
    assert document["detail"] == document["error"]["message"]
    return dict(document["error"])


def test_contextual_chunks_are_those_of_our_own_route(
    client: Any, late_chunks: Callable[..., np.ndarray], plain: Callable[..., np.ndarray]
) -> None:
    other = [f"Sentence {number} of another document. " for number in range(9)]
    found = client.contextualized_embed([CHUNKS, ["one text"], other], MODEL, "document").results
    assert np.array_equal(as_array(found[0].embeddings), late_chunks(CHUNKS))
    assert np.array_equal(as_array(found[1].embeddings), plain(["one text"]))
    assert np.array_equal(as_array(found[2].embeddings), late_chunks(other))
    assert found[0].chunk_texts is None


def test_a_long_document_is_read_in_one_pass(
    client: Any, late_chunks: Callable[..., np.ndarray]
) -> None:
    """Beyond one block, and beyond what is read in one unit: tiles, as on our own route."""
    chunks = [f"Chapter {number}. {DOCUMENT * 5}\n" for number in range(16)]
    answer = client.contextualized_embed([chunks], MODEL, "document")
    assert answer.total_tokens > 2048
    assert np.array_equal(as_array(answer.results[0].embeddings), late_chunks(chunks))


def test_queries(client: Any, plain: Callable[..., np.ndarray]) -> None:
    queries = ["Where is the cat?", "Did it rain?"]
    found = client.contextualized_embed(queries, MODEL, "query").results
    assert np.array_equal(as_array([item.embeddings[0] for item in found]), plain(queries))


def test_documents_cut_here(client: Any, api: httpx.Client) -> None:
    text = DOCUMENT * 12
    answer = client.contextualized_embed(
        [text, DOCUMENT], MODEL, "document", enable_auto_chunking=True, chunk_size=64
    )
    assert answer.chunker_version == "lln-1"
    chunking = {"type": "sentences", "min_tokens": 64, "max_tokens": 64}
    own = api.post("/v1/documents", json={"text": text, "chunking": chunking}).json()
    spans = [chunk["characters"] for chunk in own["chunks"]]
    assert answer.chunk_texts[0] == [text[span["start"] : span["end"]] for span in spans]
    assert len(spans) > 4
    vectors = as_array([chunk["vector"] for chunk in own["chunks"]])
    assert np.array_equal(as_array(answer.results[0].embeddings), vectors)
    assert answer.chunk_texts[1] == [DOCUMENT]


def test_chunks_that_overlap(client: Any, api: httpx.Client) -> None:
    text = DOCUMENT * 12
    options = {"enable_auto_chunking": True, "chunk_size": 50, "chunk_overlap": 20}
    answer = client.contextualized_embed([text], MODEL, "document", **options)
    chunking = {"type": "fixed", "tokens": 50, "overlap": 20}
    own = api.post("/v1/documents", json={"text": text, "chunking": chunking}).json()
    assert len(own["chunks"]) == len(answer.results[0].embeddings)
    texts = answer.chunk_texts[0]
    for one, following in pairwise(texts):
        start = text.find(following[:40], text.find(one) + 1)
        assert start < text.find(one) + len(one), "it begins within the one before"
    counts = [api.post("/v1/tokenize", json={"text": piece}).json()["count"] - 2 for piece in texts]
    assert counts[:-1] == [50] * (len(counts) - 1)
    assert counts[-1] <= 50
    vectors = as_array([chunk["vector"] for chunk in own["chunks"]])
    assert np.array_equal(as_array(answer.results[0].embeddings), vectors)


def test_tokens_are_counted_exactly(client: Any, api: httpx.Client) -> None:
    def count(text: str) -> int:
        return int(api.post("/v1/tokenize", json={"text": text}).json()["count"])

    answer = client.contextualized_embed([CHUNKS, ["one text"]], MODEL, "document")
    of_chunks = sum(count(chunk) - 2 for chunk in CHUNKS) + 2
    assert answer.total_tokens == of_chunks + count("one text")


def test_a_chunk_is_tokenised_alone(api: httpx.Client) -> None:
    """Where chunks meet within a word, the word is cut there too."""
    answer = post(api, inputs=[["embed", "dings of text"]]).json()
    whole = api.post("/v1/tokenize", json={"text": "embeddings of text"}).json()
    parts = [api.post("/v1/tokenize", json={"text": part}).json() for part in ("embed", "dings")]
    assert answer["usage"]["total_tokens"] == sum(part["count"] - 2 for part in parts) + 4
    assert whole["ids"][1:3] != [parts[0]["ids"][1], parts[1]["ids"][1]]


def test_plain_embeddings(client: Any, plain: Callable[..., np.ndarray]) -> None:
    texts = ["a text", DOCUMENT]
    found = client.embed(texts, "voyage-3.5", input_type="document")
    assert np.array_equal(as_array(found.embeddings), plain(texts))
    short = client.embed(texts, "voyage-3.5", output_dimension=64)
    assert np.array_equal(as_array(short.embeddings), plain(texts, dimensions=64))


@pytest.fixture
def small(small_model: RunningServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=small_model.http_url, timeout=150) as client:
        yield client


def post_small(small: httpx.Client, **body: Any) -> httpx.Response:
    return small.post("/v1/contextualizedembeddings", json=body)


def test_50_documents_of_100_chunks(small: httpx.Client) -> None:
    documents = [[f"{chunk % 10} " for chunk in range(100)] for _ in range(50)]
    answer = post_small(small, inputs=documents).raise_for_status().json()
    assert [len(item["data"]) for item in answer["data"]] == [100] * 50
    assert [chunk["index"] for chunk in answer["data"][49]["data"]] == list(range(100))
    assert answer["usage"]["total_tokens"] == 50 * (100 + 2)
    first, last = (item["data"][7]["embedding"] for item in (answer["data"][0], answer["data"][49]))
    assert first == last, "the same document has the same vectors, whatever is beside it"


def test_one_document_of_5000_chunks(small: httpx.Client) -> None:
    answer = post_small(small, inputs=[["a "] * 5000]).raise_for_status().json()
    assert len(answer["data"][0]["data"]) == 5000
    assert answer["usage"]["total_tokens"] == 5002


def peak_bytes(server: RunningServer) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if "VmHWM" in line) * 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_a_document_of_1000001_tokens_is_refused_in_bounded_memory(
    small_model: RunningServer, small: httpx.Client
) -> None:
    chunks = ["a b c d e f g h i j " * 1_000] * 100
    chunks[-1] = chunks[-1][:-4]  # two special tokens, and one more than the limit
    chunks.append("k")
    before = peak_bytes(small_model)
    answer = post_small(small, inputs=[["a", "b"], chunks])
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert answer.json()["detail"] == error["message"]
    assert error["code"] == "text_too_long"
    assert (error["param"], error["limit"]) == ("inputs[1]", MAX_TOKENS)
    assert error["actual"] == MAX_TOKENS + 1
    assert peak_bytes(small_model) - before < 200 * 2**20


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"inputs": [["a", ""]]}, "empty_text", "inputs[0][1]"),
        ({"inputs": [["x"], ["a", " \n "]]}, "empty_text", "inputs[1][1]"),
        ({"inputs": [[""]]}, "empty_text", "inputs[0][0]"),
        ({"inputs": [["a"], []]}, "empty_input", "inputs[1]"),
        ({"inputs": []}, "empty_input", "inputs"),
        ({"inputs": ["a"] * 2049}, "too_many_inputs", "inputs"),
        ({"inputs": ["a", ["b", "c"]] * 1025}, "too_many_inputs", "inputs"),
        ({"inputs": "a text"}, "invalid_type", "inputs"),
        ({"inputs": [["a", 7]]}, "invalid_type", "inputs[0][1]"),
        ({"inputs": [7]}, "invalid_type", "inputs[0]"),
        ({"inputs": ["a text"], "input_type": "document"}, "invalid_type", "inputs"),
        ({"inputs": [["a", "b"]], "input_type": "query"}, "too_many_inputs", "inputs[0]"),
        ({"inputs": [["a"]], "chunk_size": 9}, "invalid_input", "chunk_size"),
        ({"inputs": [["a"]], "output_dimension": 385}, "invalid_dimensions", "output_dimension"),
        ({"inputs": [["a", "b"]], "output_dimension": 0}, "invalid_dimensions", "output_dimension"),
        ({"inputs": [["a"]], "input_type": "passage"}, "invalid_field", "input_type"),
        ({"inputs": [["a"]], "encoding_format": "hex"}, "invalid_field", "encoding_format"),
        ({"inputs": [["a"]], "colour": 1}, "unknown_field", "colour"),
        ({"inputs": [["a"]], "model": "nobody"}, "model_not_found", "model"),
        ({}, "missing_field", "inputs"),
    ],
)
def test_what_is_refused(api: httpx.Client, body: dict[str, Any], code: str, param: str) -> None:
    error = refused(api, **body)
    assert (error["code"], error["param"]) == (code, param)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"inputs": [["a", "b"]]}, "inputs[0]"),
        ({"inputs": [["a"]], "input_type": "query"}, "enable_auto_chunking"),
        ({"inputs": [["a"]], "chunk_size": 8, "chunk_overlap": 8}, "chunk_overlap"),
        ({"inputs": [["a"]], "chunk_size": 0}, "chunk_size"),
        ({"inputs": [["  "]]}, "inputs[0]"),
        ({"inputs": ["a", ""]}, "inputs[1]"),
        ({"inputs": [["a"], [""]]}, "inputs[1][0]"),
    ],
)
def test_what_is_refused_of_documents_cut_here(
    api: httpx.Client, body: dict[str, Any], param: str
) -> None:
    assert refused(api, enable_auto_chunking=True, **body)["param"] == param


def test_errors_reach_the_user_of_the_client(client: Any, url: str) -> None:
    with pytest.raises(voyageai.error.InvalidRequestError, match="output_dimension must be 1 to"):
        client.embed(["a"], "voyage-3.5", output_dimension=4096)
    with pytest.raises(voyageai.error.InvalidRequestError, match="is only white space"):
        client.contextualized_embed([["a", " "]], MODEL)
    stranger = voyageai.Client(api_key="of-somebody-unknown", base_url=f"{url}/v1")
    with pytest.raises(voyageai.error.AuthenticationError, match="API key is not valid"):
        stranger.embed(["a"], "voyage-3.5")
    with pytest.raises(voyageai.error.APIError, match="unknown model 'voyage-9'"):
        client.embed(["a"], "voyage-9")


def test_a_body_without_a_content_type(api: httpx.Client) -> None:
    """LiteLLM's Voyage provider declares none. A browser always says where its page is from."""
    body = b'{"inputs": [["a", "b"]]}'
    path = "/v1/contextualizedembeddings"
    assert api.post(path, content=body).status_code == 200
    for header in ({"origin": str(api.base_url)}, {"sec-fetch-site": "same-origin"}):
        answer = api.post(path, content=body, headers=header)
        assert answer.status_code == 415, answer.text
        assert "application/json" in answer.json()["detail"]
    form = {"content-type": "application/x-www-form-urlencoded"}
    assert api.post(path, content=body, headers=form).status_code == 415


@pytest.mark.parametrize("dtype", ["int8", "uint8", "binary", "ubinary"])
def test_other_data_types(
    client: Any, api: httpx.Client, late_chunks: Callable[..., np.ndarray], dtype: str
) -> None:
    found = client.contextualized_embed([CHUNKS], MODEL, "document", output_dtype=dtype)
    codes = np.array(found.results[0].embeddings)
    exact = late_chunks(CHUNKS)
    assert np.array_equal(codes, late_chunks(CHUNKS, output_dtype=dtype).astype(int))
    if dtype.endswith("int8"):
        [model] = [one for one in api.get("/v1/models").json()["data"] if one["id"] == "default"]
        step = model["int8_range"] / 127
        within = np.abs(exact) <= model["int8_range"]
        restored = (codes - (128 if dtype == "uint8" else 0)) * step
        assert within.mean() > 0.99
        assert np.abs(restored - exact)[within].max() <= step / 2 * 1.001
    else:
        bits = np.packbits(exact > 0, axis=-1).astype(int)
        assert np.array_equal(codes, bits - (128 if dtype == "binary" else 0))
    plain = client.embed(["a text"], "voyage-3.5", output_dtype=dtype).embeddings[0]
    assert len(plain) == (48 if "binary" in dtype else 384)


def test_a_data_type_that_the_dimensions_do_not_fit(api: httpx.Client) -> None:
    error = refused(api, inputs=[["a"]], output_dtype="binary", output_dimension=12)
    assert error["param"] == "output_dimension"
