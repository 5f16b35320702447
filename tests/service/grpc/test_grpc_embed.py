"""Embed over gRPC: vectors, formats and accounting are those of HTTP."""

from __future__ import annotations

import base64
import os
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from grpc import StatusCode

from engine.types import Vector
from service.pb.lln.v1 import embeddings_pb2 as pb
from service.pb.lln.v1 import (
    models_pb2,
)
from tests.service.stubs import embeddings_stub, models_stub

SOFTMAX = "sentence-transformers/all-MiniLM-L6-v2"
TEXTS = [
    "A short one.",
    "Linear attention keeps a state of fixed size, however long the text is. " * 20,
    "Μια γραμμή σε άλλο αλφάβητο, 漢字 and an emoji 🙂.",
]
DTYPES = {
    pb.VECTOR_FORMAT_FLOAT32: "<f4",
    pb.VECTOR_FORMAT_FLOAT16: "<f2",
    pb.VECTOR_FORMAT_INT8: "i1",
}


@pytest.fixture(scope="module")
def models(channel: grpc.Channel) -> Any:
    return models_stub(channel)


def inputs(*texts: str) -> list[pb.Input]:
    return [pb.Input(text=text) for text in texts]


def unpack(vector: pb.Vector) -> Vector:
    numbers = np.frombuffer(vector.data, DTYPES[vector.format]).reshape(tuple(vector.shape))
    scales = np.array(vector.scales or [1.0], np.float32)
    return numbers.astype(np.float32) * scales.reshape(-1, *[1] * (numbers.ndim - 1))


def matrix(response: pb.EmbedResponse) -> Vector:
    return np.stack([unpack(embedding.vector) for embedding in response.embeddings])


def http_matrix(http: httpx.Client, **body: Any) -> Vector:
    answer = http.post("/v1/embeddings", json={"encoding_format": "base64", **body})
    data = answer.raise_for_status().json()["data"]
    return np.stack([np.frombuffer(base64.b64decode(row["embedding"]), "<f4") for row in data])


@pytest.mark.parametrize("model", ["default", SOFTMAX])
def test_vectors_equal_those_of_http(model: str, embeddings: Any, http: httpx.Client) -> None:
    response = embeddings.Embed(pb.EmbedRequest(model=model, input=inputs(*TEXTS)))

    assert response.model == model
    expected = http_matrix(http, model=model, input=TEXTS)
    np.testing.assert_allclose(matrix(response), expected, atol=2e-6)


@pytest.mark.parametrize("text", [" \n", "\x00"])
def test_a_text_without_tokens_has_the_vector_of_http(
    text: str, embeddings: Any, http: httpx.Client
) -> None:
    response = embeddings.Embed(pb.EmbedRequest(input=inputs(text)))
    np.testing.assert_allclose(matrix(response), http_matrix(http, input=[text]), atol=2e-6)
    assert response.embeddings[0].accounting.tokens == 2


def test_absent_fields_take_the_defaults_of_http(embeddings: Any, http: httpx.Client) -> None:
    response = embeddings.Embed(pb.EmbedRequest(input=inputs(TEXTS[0])))

    assert response.model == "default"
    np.testing.assert_allclose(matrix(response), http_matrix(http, input=TEXTS[0]), atol=2e-6)
    np.testing.assert_allclose(np.linalg.norm(matrix(response), axis=1), 1, atol=1e-6)


def test_options_equal_those_of_http(embeddings: Any, http: httpx.Client) -> None:
    options = pb.EmbedOptions(dimensions=100, normalize=False, truncate=pb.TRUNCATE_END)
    response = embeddings.Embed(pb.EmbedRequest(input=inputs(*TEXTS), options=options))

    expected = http_matrix(http, input=TEXTS, dimensions=100, normalize=False, truncate="end")
    assert matrix(response).shape == (3, 100)
    np.testing.assert_allclose(matrix(response), expected, atol=2e-5)


def test_accounting_counts_tokens(embeddings: Any, models: Any) -> None:
    response = embeddings.Embed(pb.EmbedRequest(input=inputs(*TEXTS)))

    for text, embedding in zip(TEXTS, response.embeddings, strict=True):
        cost = embedding.accounting
        num_tokens = len(models.Tokenize(models_pb2.TokenizeRequest(text=text)).ids)
        assert (cost.tokens, cost.tokens_embedded) == (num_tokens, num_tokens)
        assert not cost.HasField("dropped")
        assert cost.compute_s > 0


@pytest.mark.parametrize(
    ("form", "num_bytes", "tolerance"),
    [(pb.VECTOR_FORMAT_FLOAT16, 2 * 384, 2e-4), (pb.VECTOR_FORMAT_INT8, 384, 2e-3)],
)
def test_smaller_formats(
    form: pb.VectorFormat, num_bytes: int, tolerance: float, embeddings: Any
) -> None:
    exact = embeddings.Embed(pb.EmbedRequest(input=inputs(*TEXTS)))
    options = pb.EmbedOptions(format=form)
    small = embeddings.Embed(pb.EmbedRequest(input=inputs(*TEXTS), options=options))

    assert {embedding.vector.format for embedding in small.embeddings} == {form}
    assert {len(embedding.vector.data) for embedding in small.embeddings} == {num_bytes}
    np.testing.assert_allclose(matrix(small), matrix(exact), atol=tolerance)


def test_token_ids_and_text_mix(embeddings: Any, models: Any) -> None:
    ids = models.Tokenize(models_pb2.TokenizeRequest(text=TEXTS[0])).ids
    request = pb.EmbedRequest(
        input=[
            pb.Input(text=TEXTS[0]),
            pb.Input(token_ids=pb.TokenIds(ids=ids)),
            pb.Input(token_ids=pb.TokenIds(ids=ids[1:-1])),
        ]
    )
    rows = matrix(embeddings.Embed(request))

    np.testing.assert_allclose(rows, rows[:1].repeat(3, axis=0), atol=2e-6)


def test_many_calls_at_once(embeddings: Any) -> None:
    texts = [f"Text number {number}, " + "word " * (number % 50) for number in range(100)]
    pending = [embeddings.Embed.future(pb.EmbedRequest(input=inputs(text))) for text in texts]
    rows = np.concatenate([matrix(call.result(timeout=120)) for call in pending])

    expected = matrix(embeddings.Embed(pb.EmbedRequest(input=inputs(*texts))))
    np.testing.assert_allclose(rows, expected, atol=2e-6)


def test_a_client_queues_calls_beyond_those_of_a_connection(server: Any) -> None:
    with grpc.insecure_channel(server.grpc_address) as channel:
        stub = embeddings_stub(channel)
        texts = [inputs(f"Text number {number}.") for number in range(400)]
        calls = [stub.Embed.future(pb.EmbedRequest(input=text)) for text in texts]
        assert [call.code() for call in calls] == [StatusCode.OK] * 400


def test_request_id_is_generated_or_taken(embeddings: Any, server: Any) -> None:
    def id_of(**arguments: Any) -> str:
        _, call = embeddings.Embed.with_call(pb.EmbedRequest(input=inputs("a")), **arguments)
        return str(dict(call.initial_metadata())["x-request-id"])

    given = f"given-{os.getpid()}"
    assert id_of(metadata=[("x-request-id", given)]) == given
    assert given in server.log()
    assert id_of() != id_of()
    # An id that could forge a log line is replaced.
    assert id_of(metadata=[("x-request-id", "two words")]) != "two words"


def test_requests_are_counted(embeddings: Any, http: httpx.Client) -> None:
    def count() -> float:
        series = 'lln_requests_total{code="ok",method="lln.v1.Embeddings/Embed",protocol="grpc"}'
        lines = http.get("/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(series))

    before = count()
    embeddings.Embed(pb.EmbedRequest(input=inputs("a")))
    assert count() == before + 1


def test_a_method_of_one_message_ignores_others(channel: grpc.Channel) -> None:
    """As docs/api.md says: to look for a second message would cost every call."""
    opened: Any = channel
    call = opened.stream_unary(
        "/lln.v1.Embeddings/Embed",
        pb.EmbedRequest.SerializeToString,
        pb.EmbedResponse.FromString,
    )
    answer = call(iter([pb.EmbedRequest(input=inputs("a")), pb.EmbedRequest(model="nope")]))
    assert len(answer.embeddings) == 1
