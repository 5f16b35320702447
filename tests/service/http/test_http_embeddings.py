"""POST /v1/embeddings: OpenAI's whole contract, and what we add to it."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from numpy.typing import NDArray

PUBLISHED = "sentence-transformers/all-MiniLM-L6-v2"
TEXTS = ["A cat sits on the mat.", "Dogs bark.", "The quick brown fox jumps over the lazy dog."]


def ask(http: httpx.Client, texts: Any, **fields: Any) -> dict[str, Any]:
    response = http.post("/v1/embeddings", json={"input": texts, **fields})
    assert response.status_code == 200, response.text
    document: dict[str, Any] = response.json()
    return document


def vectors(document: dict[str, Any]) -> NDArray[np.float32]:
    return np.array([item["embedding"] for item in document["data"]], dtype=np.float32)


def refusal(http: httpx.Client, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    response = http.post("/v1/embeddings", json=body)
    document = response.json()
    # Voyage's clients read `detail`, and share this path.
    assert document == {"detail": document["error"]["message"], "error": document["error"]}
    assert list(document["error"]) == ["message", "type", "code", "param", "limit", "actual"]
    return response.status_code, document["error"]


@pytest.fixture
def client(server: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.http_url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_string_gives_one_unit_vector_in_openais_shape(http: httpx.Client) -> None:
    document = ask(http, TEXTS[0])
    assert document["object"] == "list"
    assert document["model"] == "default"
    [item] = document["data"]
    assert item["object"] == "embedding"
    assert item["index"] == 0
    assert set(item) == {"object", "index", "embedding"}
    assert len(item["embedding"]) == 384
    assert np.linalg.norm(item["embedding"]) == pytest.approx(1, abs=1e-5)
    tokens = http.post("/v1/tokenize", json={"text": TEXTS[0]}).json()["count"]
    assert document["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}


def test_list_keeps_its_order(http: httpx.Client) -> None:
    document = ask(http, TEXTS)
    assert [item["index"] for item in document["data"]] == [0, 1, 2]
    alone = np.concatenate([vectors(ask(http, text)) for text in TEXTS])
    np.testing.assert_allclose(vectors(document), alone, atol=2e-6)


def test_token_ids_alone_and_in_lists(http: httpx.Client) -> None:
    ids = [http.post("/v1/tokenize", json={"text": text}).json()["ids"] for text in TEXTS]
    expected = vectors(ask(http, TEXTS))
    np.testing.assert_allclose(vectors(ask(http, ids)), expected, atol=2e-6)
    np.testing.assert_allclose(vectors(ask(http, ids[0])), expected[:1], atol=2e-6)
    np.testing.assert_allclose(vectors(ask(http, ids[0][1:-1])), expected[:1], atol=2e-6)


@pytest.mark.parametrize("given", [{"text": TEXTS[0]}, [{"text": TEXTS[0]}]])
def test_a_text_in_an_object_as_jina_writes_it(http: httpx.Client, given: Any) -> None:
    np.testing.assert_allclose(vectors(ask(http, given)), vectors(ask(http, TEXTS[0])), atol=2e-6)


@pytest.mark.parametrize("text", [" ", "\n\t \u00a0", "\x00", "\x00\x00"])
def test_a_text_without_tokens_has_the_vector_of_the_special_tokens(
    http: httpx.Client, text: str
) -> None:
    [special] = vectors(ask(http, [[101, 102]]))
    answer = ask(http, [text])
    assert vectors(answer)[0] == pytest.approx(special, abs=2e-6)
    assert answer["usage"]["prompt_tokens"] == 2


def test_base64_is_little_endian_float32(http: httpx.Client) -> None:
    document = ask(http, TEXTS, encoding_format="base64")
    decoded = [
        np.frombuffer(base64.b64decode(item["embedding"]), dtype="<f4") for item in document["data"]
    ]
    np.testing.assert_allclose(np.stack(decoded), vectors(ask(http, TEXTS)), atol=2e-6)


def test_dimensions_truncate_then_normalise(http: httpx.Client) -> None:
    cut = vectors(ask(http, TEXTS, dimensions=64))
    whole = vectors(ask(http, TEXTS))[:, :64]
    np.testing.assert_allclose(cut, whole / np.linalg.norm(whole, axis=1, keepdims=True), atol=2e-6)


def test_normalize_can_be_switched_off(http: httpx.Client) -> None:
    raw = vectors(ask(http, TEXTS, normalize=False))
    norms = np.linalg.norm(raw, axis=1, keepdims=True)
    assert (abs(norms - 1) > 0.01).all()
    np.testing.assert_allclose(raw / norms, vectors(ask(http, TEXTS)), atol=2e-6)


def test_published_model_by_its_name(http: httpx.Client) -> None:
    """The default model is made from it: the same within a block, close beyond."""
    texts = [TEXTS[0], " ".join(f"Line {number} tells of the sea." for number in range(200))]
    document = ask(http, texts, model=PUBLISHED)
    assert document["model"] == PUBLISHED
    short, long = (vectors(document) * vectors(ask(http, texts))).sum(axis=1)
    assert short > 0.9
    assert 0.8 < long < 0.99999


def test_time_spent_is_in_a_standard_header(http: httpx.Client) -> None:
    timing = http.post("/v1/embeddings", json={"input": "x"}).headers["server-timing"]
    assert timing.startswith("queue;dur=")
    assert "compute;dur=" in timing


def as_numbers(embedding: Sequence[float] | str) -> NDArray[np.float32]:
    """Asked for base64 in so many words, the client hands it on as it came."""
    if isinstance(embedding, str):
        return np.frombuffer(base64.b64decode(embedding), dtype="<f4")
    return np.asarray(embedding, dtype=np.float32)


@pytest.mark.parametrize("encoding", [openai.omit, "float", "base64"])
def test_openai_client(client: openai.OpenAI, encoding: Any, http: httpx.Client) -> None:
    answer = client.embeddings.create(
        model=PUBLISHED, input=TEXTS, encoding_format=encoding, user="someone"
    )
    expected = vectors(ask(http, TEXTS, model=PUBLISHED))
    assert answer.usage.prompt_tokens > 0
    for item, vector in zip(answer.data, expected, strict=True):
        np.testing.assert_allclose(as_numbers(item.embedding), vector, atol=2e-6)


def test_openai_client_knows_our_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.embeddings.create(model="gpt-embed", input="x")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as refused:
        client.embeddings.create(model="default", input="x", dimensions=9999)
    assert refused.value.code == "invalid_dimensions"
    assert refused.value.param == "dimensions"
    assert {model.id for model in client.models.list()} == {"default", PUBLISHED}


@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        ({"input": []}, 400, "empty_input", "input"),
        ({"input": ""}, 400, "empty_text", "input[0]"),
        ({"input": ["a", ""]}, 400, "empty_text", "input[1]"),
        ({"input": ["a", []]}, 400, "empty_text", "input[1]"),
        ({"input": None}, 400, "invalid_type", "input"),
        ({"input": 7}, 400, "invalid_type", "input"),
        ({"input": ["a", 7]}, 400, "invalid_type", "input[1]"),
        ({"input": ["a", None]}, 400, "invalid_type", "input[1]"),
        ({"input": [True]}, 400, "invalid_type", "input[0]"),
        ({"input": [[1, "a"]]}, 400, "invalid_token_id", "input[0]"),
        ({"input": [[1, 2.5]]}, 400, "invalid_token_id", "input[0]"),
        ({"input": [[1, [2]]]}, 400, "invalid_token_id", "input[0]"),
        ({"input": [[[1], [2, 3]]]}, 400, "invalid_token_id", "input[0]"),
        ({"input": [[[]]]}, 400, "invalid_token_id", "input[0]"),
        ({"input": [[1, -5]]}, 400, "invalid_token_id", None),
        ({"input": [10**9]}, 400, "invalid_token_id", None),
        ({"input": [[10**30]]}, 400, None, None),
        ({"input": "x", "model": "nope"}, 404, "model_not_found", "model"),
        ({"input": "x", "model": 7}, 422, "invalid_field", "model"),
        ({"input": "x", "dimensions": 0}, 400, "invalid_dimensions", "dimensions"),
        ({"input": "x", "dimensions": 385}, 400, "invalid_dimensions", "dimensions"),
        ({"input": "x", "dimensions": "64"}, 422, "invalid_field", "dimensions"),
        ({"input": "x", "encoding_format": "hex"}, 422, "invalid_field", "encoding_format"),
        ({"input": "x", "truncate": "middle"}, 422, "invalid_field", "truncate"),
        ({"input": "x", "normalize": "yes"}, 422, "invalid_field", "normalize"),
        ({"input": "x", "prompt_name": "nope"}, 400, "unknown_prompt", "prompt_name"),
        ({"input": "x", "dimension": 64}, 422, "unknown_field", "dimension"),
        ({"model": "default"}, 422, "missing_field", "input"),
    ],
)
def test_bad_input_is_refused_by_name(
    http: httpx.Client, body: dict[str, Any], status: int, code: str | None, param: str | None
) -> None:
    found, error = refusal(http, body)
    assert found == status, error
    assert code is None or error["code"] == code
    assert param is None or error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert error["message"]


@pytest.mark.parametrize(
    ("given", "message", "param"),
    [
        ({"a": 1}, "got an object with 'a'", "input"),
        ({}, "got an empty object", "input"),
        (["x", {"a": 1}], "got an object with 'a'", "input[1]"),
        (["x", None], "got null", "input[1]"),
        (["x", 7], "got 7", "input[1]"),
        ([True, 101], "got true", "input[0]"),
        (7.5, "got 7.5", "input"),
        (True, "got true", "input"),
    ],
)
def test_an_input_that_is_no_text_is_named(
    http: httpx.Client, given: Any, message: str, param: str
) -> None:
    _, error = refusal(http, {"input": given})
    assert (error["code"], error["param"]) == ("invalid_type", param)
    assert error["message"].startswith(f"{param} must be a string")
    assert error["message"].endswith(message)


@pytest.mark.parametrize(
    ("given", "at", "named"),
    [([101, "x"], 1, "'x'"), ([101, 102, [103]], 2, "a list"), ([101, 5.5], 1, "5.5")],
)
def test_what_is_no_id_among_token_ids_is_named(
    http: httpx.Client, given: list[Any], at: int, named: str
) -> None:
    _, error = refusal(http, {"input": given})
    assert (error["code"], error["param"]) == ("invalid_type", f"input[{at}]")
    assert error["message"] == f"input[{at}] must be a token id, as input[0] is, got {named}"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ('"64"', "got '64'"),
        ("true", "got true"),
        ("[64]", "got a list"),
        ('{"n": 64}', "got an object with 'n'"),
        (str(10**20), "at most 64 bits, got 1e+20"),
        (f"[{', '.join(['1'] * 20_000)}]", "got a list"),
    ],
)
def test_a_value_of_another_type_is_named_as_in_json(
    given: str, said: str, http: httpx.Client
) -> None:
    body = f'{{"input": "x", "dimensions": {given}}}'
    answer = http.post("/v1/embeddings", content=body, headers={"content-type": "application/json"})
    assert answer.json()["error"]["message"].endswith(said)


def test_a_body_that_is_no_object(http: httpx.Client) -> None:
    answer = http.post("/v1/embeddings", json=[])
    assert answer.json()["error"]["message"] == "the body: input should be an object, got a list"


def test_an_encoding_of_null_is_the_default(http: httpx.Client) -> None:
    """LiteLLM's provider for servers with OpenAI's requests sends it."""
    answer = http.post("/v1/embeddings", json={"input": "x", "encoding_format": None})
    assert answer.status_code == 200, answer.text
    assert isinstance(answer.json()["data"][0]["embedding"], list)


def test_too_many_inputs(http: httpx.Client) -> None:
    status, error = refusal(http, {"input": ["x"] * 3000})
    assert status == 400
    assert (error["code"], error["limit"], error["actual"]) == ("too_many_inputs", 2048, 3000)


def test_as_many_inputs_as_allowed(http: httpx.Client) -> None:
    document = ask(http, [f"text {number}" for number in range(2048)], encoding_format="base64")
    assert [item["index"] for item in document["data"]] == list(range(2048))


@pytest.mark.parametrize("header", ["0", "-1", "soon", "1.5"])
def test_bad_deadline(http: httpx.Client, header: str) -> None:
    response = http.post(
        "/v1/embeddings", json={"input": "x"}, headers={"x-request-timeout-ms": header}
    )
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_timeout"


def test_passed_deadline(http: httpx.Client) -> None:
    response = http.post(
        "/v1/embeddings",
        json={"input": "word " * 2_000},
        headers={"x-request-timeout-ms": "1"},
    )
    assert response.status_code == 504, response.text
    assert response.json()["error"]["code"] == "deadline_exceeded"


def test_text_too_long_and_truncation(start_server: Any) -> None:
    small = start_server(
        LLN_MODELS="default",
        LLN_ENGINE__MAX_TEXT_TOKENS="16",
        LLN_ENGINE__MAX_SOFTMAX_TEXT_TOKENS="16",
    )
    text = " ".join(f"word{number % 10}" for number in range(40))
    with httpx.Client(base_url=small.http_url, timeout=60) as http:
        status, error = refusal(http, {"input": ["short", text]})
        assert status == 400
        assert (error["code"], error["param"], error["limit"]) == (
            "text_too_long",
            "input[1]",
            16,
        )
        assert error["actual"] > 16
        short, cut = ask(http, ["short", text], truncate="end")["data"]
        assert "lln" not in short
        dropped = cut["lln"]["dropped"]
        assert cut["lln"]["tokens_embedded"] == 16
        assert cut["lln"]["tokens"] == error["actual"]
        assert dropped["end"] == len(text)
        kept = text[: dropped["start"]]
        expected = vectors(ask(http, kept))
        np.testing.assert_allclose([cut["embedding"]], expected, atol=2e-6)
        [cut] = ask(http, text, truncate="start")["data"]
        assert cut["lln"]["dropped"]["start"] == 0
