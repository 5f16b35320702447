"""Requests without a piece in time, and those of which the last piece never comes."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

import grpc
import httpx
import pytest
from grpc import StatusCode

from service.pb.lln.v1 import embeddings_pb2 as pb
from service.pb.tei.v1 import tei_pb2
from tests.service.limits.silent_callers import (
    A_TEXT,
    SILENCE_S,
    TIMEOUT_S,
    assert_ends_in_time,
    falling_silent,
    has_room,
)
from tests.service.outside import metric, wait_for
from tests.service.stubs import embeddings_stub, reflection_stub, tei_rank_stub, tei_stub


def slowly(*, record: bool) -> Iterator[pb.EmbedDocumentRequest]:
    """Each piece comes in time, and the last never does."""
    yield pb.EmbedDocumentRequest(open=pb.DocumentOptions(with_record=record))
    while True:
        time.sleep(SILENCE_S / 3)
        yield pb.EmbedDocumentRequest(text=b"a word ")


def slow_texts() -> Iterator[tei_pb2.RerankStreamRequest]:
    while True:
        time.sleep(SILENCE_S / 3)
        yield tei_pb2.RerankStreamRequest(query="a query", text="a text")


def endless_call(call: Callable[[grpc.Channel], Any]) -> Callable[[Any], None]:
    def ask(server: Any) -> None:
        with (
            grpc.insecure_channel(server.grpc_address) as channel,
            pytest.raises(grpc.RpcError) as caught,
        ):
            call(channel)
        error: Any = caught.value
        assert error.code() == StatusCode.DEADLINE_EXCEEDED
        assert dict(error.trailing_metadata())["lln-error-limit"].startswith(f"{TIMEOUT_S:g}")

    return ask


def silent_stream(method: Callable[[grpc.Channel], Any]) -> Callable[[Any], None]:
    def ask(server: Any) -> None:
        with grpc.insecure_channel(server.grpc_address) as channel, falling_silent() as nothing:
            assert_ends_in_time(method(channel)(nothing))

    return ask


def endless_file(server: Any) -> None:
    address = urlsplit(server.http_url)
    with socket.socket() as connection:
        connection.settimeout(SILENCE_S / 3)
        connection.connect((address.hostname, address.port))
        begin = b'--b\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n'
        connection.sendall(
            b"POST /v1/files HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
            b"Content-Type: multipart/form-data; boundary=b\r\n\r\n"
            b"%x\r\n%b\r\n" % (len(begin), begin)
        )
        answer = b""
        while not answer.endswith(b"}"):  # its head may come first
            try:
                answer += connection.recv(4096)
            except TimeoutError:
                connection.sendall(b"1\r\nx\r\n")
    assert answer.startswith(b"HTTP/1.1 504")
    assert b"before the file was read" in answer


ENDLESS: dict[str, Callable[[Any], None]] = {
    "a document": endless_call(
        lambda channel: list(embeddings_stub(channel).EmbedDocument(slowly(record=False)))
    ),
    "a document with a record": endless_call(
        lambda channel: list(embeddings_stub(channel).EmbedDocument(slowly(record=True)))
    ),
    "texts": endless_call(lambda channel: tei_rank_stub(channel).RerankStream(slow_texts())),
    "a file": endless_file,
    "no document": silent_stream(lambda channel: embeddings_stub(channel).EmbedDocument),
    "no text": silent_stream(lambda channel: embeddings_stub(channel).EmbedStream),
    "no text of TEI": silent_stream(lambda channel: tei_stub(channel).EmbedStream),
    "no text for states": silent_stream(lambda channel: tei_stub(channel).EmbedAllStream),
    "no question": silent_stream(lambda channel: reflection_stub(channel).ServerReflectionInfo),
}


@pytest.fixture(scope="module")
def wide(launch_server: Any) -> Any:
    """One request slot for each of the callers that are tried side by side, as each takes long."""
    return launch_server(
        LLN_MODELS="default",
        LLN_MAX_OPEN_REQUESTS=str(len(ENDLESS)),
        LLN_BODY_TIMEOUT_S=str(SILENCE_S),
        LLN_REQUEST_TIMEOUT_S=str(TIMEOUT_S),
    )


@pytest.fixture(scope="module")
def endings(wide: Any) -> dict[str, Future[float]]:
    """When each of them ended, side by side, or how it failed."""

    def ending(ask: Callable[[Any], None]) -> float:
        started_at = time.monotonic()
        ask(wide)
        return time.monotonic() - started_at

    with ThreadPoolExecutor(len(ENDLESS)) as pool:
        return {name: pool.submit(ending, ask) for name, ask in ENDLESS.items()}


@pytest.mark.long
@pytest.mark.parametrize("name", ENDLESS)
def test_what_does_not_end_times_out(endings: dict[str, Future[float]], name: str) -> None:
    assert endings[name].result() < 2 * TIMEOUT_S


def test_what_did_not_end_leaves_nothing(endings: dict[str, Future[float]], wide: Any) -> None:
    """All request slots are free: as many streams as there are slots are open at once."""
    assert all(ended.done() for ended in endings.values())
    wait_for(
        lambda: metric(wide.http_url, "lln_requests_in_progress") == 0, "their places", TIMEOUT_S
    )
    assert httpx.get(f"{wide.http_url}/v1/files", timeout=60).json()["data"] == []
    with grpc.insecure_channel(wide.grpc_address) as channel, ExitStack() as silent:
        opened = [silent.enter_context(falling_silent(A_TEXT)) for _ in ENDLESS]
        streams = [embeddings_stub(channel).EmbedStream(one) for one in opened]
        assert [next(stream).WhichOneof("outcome") for stream in streams] == ["embedding"] * len(
            ENDLESS
        )
        assert not has_room(wide)
