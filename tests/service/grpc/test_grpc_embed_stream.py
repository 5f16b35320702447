"""EmbedStream over gRPC: order, bad items in their place, and clients that do not read."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from grpc import StatusCode

from service.pb.lln.v1 import embeddings_pb2 as pb
from tests.service.stubs import embeddings_stub

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


@pytest.mark.long
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
            time.sleep(0.3)
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
