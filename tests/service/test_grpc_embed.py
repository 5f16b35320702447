"""Embed and EmbedStream over gRPC: vectors, formats, order, and bad items in their place."""

from __future__ import annotations

import base64
import os
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from grpc import StatusCode

from engine.types import Vector
from service.pb.lln.v1 import (
    diagnostics_pb2,
    models_pb2,
)
from service.pb.lln.v1 import embeddings_pb2 as pb
from tests.service.stubs import diagnostics_stub, embeddings_stub, models_stub

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
    texts = [f"Text number {number}, " + "word " * (number % 50) for number in range(200)]
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


def test_models_are_those_of_http(models: Any, http: httpx.Client) -> None:
    listed = models.List(models_pb2.ListModelsRequest()).models
    data = http.get("/v1/models").raise_for_status().json()["data"]

    assert [model.name for model in listed] == [row["name"] for row in data]
    for model, row in zip(listed, data, strict=True):
        assert list(model.attention) == row["attention"]
        assert dict(model.prompts) == row["prompts"]
        assert (model.dim, model.max_tokens) == (row["dim"], row["max_tokens"])
        assert model.HasField("calibration") == (row["calibration"] is not None)
        assert models.Get(models_pb2.GetModelRequest(model=model.name)) == model
    assert models.Get(models_pb2.GetModelRequest()) == listed[0]


def test_tokens_are_those_of_http(models: Any, http: httpx.Client) -> None:
    found = models.Tokenize(models_pb2.TokenizeRequest(text=TEXTS[2]))
    expected = http.post("/v1/tokenize", json={"text": TEXTS[2]}).raise_for_status().json()

    assert list(found.ids) == expected["ids"]
    assert list(found.tokens) == expected["tokens"]
    assert [list(span) for span in zip(found.starts, found.ends, strict=True)] == (
        expected["offsets"]
    )


def _beside(found: diagnostics_pb2.DiagnoseResponse, instrument: str, name: str) -> Any:
    [reading] = [one for one in found.instruments if one.name == instrument]
    [part] = [part for part in reading.beside if part.name == name]
    return part


def test_diagnosis_equals_that_of_http(channel: grpc.Channel, http: httpx.Client) -> None:
    stub = diagnostics_stub(channel)
    request = diagnostics_pb2.DiagnoseRequest(model=SOFTMAX, text=TEXTS[1], layers=[0, 5])
    found = stub.Diagnose(request)
    body = {"model": SOFTMAX, "text": TEXTS[1], "layers": [0, 5]}
    expected = http.post("/v1/diagnostics", json=body).raise_for_status().json()

    assert (list(found.layers), len(found.heads), found.tokens) == (
        expected["layers"],
        len(expected["heads"]),
        expected["tokens"],
    )
    assert {reading.name for reading in found.instruments} == set(expected["instruments"])
    listed = stub.ListInstruments(diagnostics_pb2.ListInstrumentsRequest())
    assert [one.name for one in listed.instruments] == list(expected["instruments"])
    cosines = _beside(found, "similarity", "cosines")
    assert list(cosines.layers[1].shape) == [12, 12]
    np.testing.assert_allclose(
        np.reshape(cosines.layers[1].values, (12, 12)),
        expected["instruments"]["similarity"]["beside"]["cosines"]["values"][1],
        rtol=1e-6,
    )
    for reading in found.instruments:
        values = np.array([list(layer.values) for layer in reading.layers])
        np.testing.assert_allclose(
            values, expected["instruments"][reading.name]["values"], rtol=1e-4, atol=1e-5
        )


STREAM = "/lln.v1.Embeddings/EmbedStream"

# A client with small receive buffers, so that the server soon notices when it stops reading.
SMALL_WINDOW = [("grpc.http2.lookahead_bytes", 65_536), ("grpc.http2.bdp_probe", 0)]


def item(number: int, text: str, **fields: Any) -> pb.EmbedStreamRequest:
    return pb.EmbedStreamRequest(id=str(number), input=pb.Input(text=text), **fields)


def test_answers_come_in_the_order_of_the_requests(embeddings: Any) -> None:
    # Long texts are computed after the short ones that follow them.
    texts = ["word " * (1_500 if number % 50 == 0 else number % 7 + 1) for number in range(100)]
    answers = list(embeddings.EmbedStream(item(*pair) for pair in enumerate(texts)))
    batch = pb.EmbedRequest(input=[pb.Input(text=text) for text in texts])
    expected = embeddings.Embed(batch).embeddings

    assert [answer.id for answer in answers] == [str(number) for number in range(100)]
    np.testing.assert_allclose(
        [np.frombuffer(answer.embedding.vector.data, "<f4") for answer in answers],
        [np.frombuffer(embedding.vector.data, "<f4") for embedding in expected],
        atol=2e-6,
    )


def test_answers_come_before_the_stream_of_requests_ends(embeddings: Any) -> None:
    answered = threading.Event()

    def requests() -> Iterator[pb.EmbedStreamRequest]:
        yield item(0, "first")
        assert answered.wait(60)
        yield item(1, "second")

    answers = embeddings.EmbedStream(requests())
    assert next(answers).id == "0"
    answered.set()
    assert [answer.id for answer in answers] == ["1"]


def test_an_invalid_item_gets_an_error_in_order(channel: grpc.Channel) -> None:
    def requests() -> Iterable[bytes]:
        yield item(0, "good").SerializeToString()
        yield item(1, "").SerializeToString()
        yield b"\x1a\x03\x0a\x01\xff"  # an input whose text is not UTF-8
        yield item(3, "good", model="nope").SerializeToString()
        yield item(4, "good", options=pb.EmbedOptions(dimensions=999)).SerializeToString()
        yield pb.EmbedStreamRequest(id="5").SerializeToString()
        yield item(6, "good").SerializeToString()

    stream = channel.stream_stream(STREAM, None, pb.EmbedStreamResponse.FromString)
    answers = list(stream(iter(requests())))

    assert [answer.id for answer in answers] == ["0", "1", "", "3", "4", "5", "6"]
    assert [answer.error.code for answer in answers] == [
        "",
        "empty_text",
        "invalid_message",
        "model_not_found",
        "invalid_dimensions",
        "invalid_field",
        "",
    ]
    invalid, not_found = StatusCode.INVALID_ARGUMENT.value[0], StatusCode.NOT_FOUND.value[0]
    assert [answer.error.status for answer in answers] == [
        0, invalid, invalid, not_found, invalid, invalid, 0,
    ]  # fmt: skip
    assert (answers[4].error.param, answers[4].error.limit) == ("dimensions", "384")
    assert answers[0].embedding.vector.data == answers[6].embedding.vector.data


def test_backpressure_from_a_client_that_does_not_read(server: Any) -> None:
    num_sent = 0
    # Ten kilobytes but three tokens: a word that is not in the vocabulary is one unknown token.
    text = "x" * 10_000

    def requests() -> Iterator[pb.EmbedStreamRequest]:
        nonlocal num_sent
        for number in range(20_000):
            num_sent += 1
            yield item(number, text)

    def sent_when_quiet() -> int:
        seen = -1
        while seen != num_sent:
            seen = num_sent
            time.sleep(0.5)
        return seen

    with grpc.insecure_channel(server.grpc_address, SMALL_WINDOW) as channel:
        stub = embeddings_stub(channel)
        answers = stub.EmbedStream(requests())
        stuck_at = sent_when_quiet()
        # Requests in flight, unread answers, and the network's buffers.
        assert stuck_at < 5_000
        for number in range(500):
            assert next(answers).id == str(number)
        assert sent_when_quiet() > stuck_at
        answers.cancel()


def test_cancelling_a_stream_stops_its_work(
    embeddings: Any, http: httpx.Client, server: Any
) -> None:
    def cancelled() -> float:
        lines = http.get("/metrics").text.splitlines()
        prefix = 'lln_cancelled_total{reason="caller_left"}'
        return sum(float(line.split()[-1]) for line in lines if line.startswith(prefix))

    before = cancelled()
    started, over = threading.Event(), threading.Event()

    def requests() -> Iterator[pb.EmbedStreamRequest]:
        for number in range(60):
            yield item(number, "word " * 1_000)
        started.set()
        over.wait(60)

    answers = embeddings.EmbedStream(requests())
    assert started.wait(60)
    next(answers)
    answers.cancel()
    deadline = time.monotonic() + 30
    while cancelled() == before and time.monotonic() < deadline:
        time.sleep(0.1)
    over.set()
    assert cancelled() > before
    assert "call failed" not in server.log()  # a client that leaves is no error


def test_a_stream_waits_when_a_call_is_rejected(start_server: Any) -> None:
    server = start_server(
        LLN_MODELS="sentence-transformers/all-MiniLM-L6-v2", LLN_ENGINE__MAX_QUEUE_TOKENS="64"
    )
    with grpc.insecure_channel(server.grpc_address) as channel:
        stub = embeddings_stub(channel)
        request = pb.EmbedRequest(input=[pb.Input(text="word " * 58)])
        calls = [stub.Embed.future(request) for _ in range(60)]
        answers = list(stub.EmbedStream(item(number, "word " * 58) for number in range(60)))

    assert [answer.WhichOneof("outcome") for answer in answers] == ["embedding"] * 60
    refused = [call for call in calls if call.code() != StatusCode.OK]
    assert 0 < len(refused) < 60
    page = httpx.get(f"{server.http_url}/metrics").text
    # Waiting texts are not rejected and are tokenised once. The canary is tokenised too.
    assert f'lln_rejected_total{{reason="queue_full"}} {len(refused)}.0' in page
    assert "lln_tokenise_seconds_count 121.0" in page
    for call in refused:
        assert call.code() == StatusCode.RESOURCE_EXHAUSTED
        metadata = dict(call.trailing_metadata())
        assert (metadata["lln-error-code"], metadata["lln-error-limit"]) == ("queue_full", "64")
        assert float(metadata["lln-retry-after-s"]) > 0
