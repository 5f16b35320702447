"""Callers that fall silent, and servers that soon lose patience with them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import httpx
import pytest
from grpc import StatusCode

from service.pb.lln.v1 import embeddings_pb2 as pb

SILENCE_S = 0.8
TIMEOUT_S = 2.5
A_TEXT = pb.EmbedStreamRequest(input=pb.Input(text="a text"))


def has_room(server: Any) -> bool:
    answer = httpx.post(f"{server.http_url}/v1/embeddings", json={"input": "x"}, timeout=60)
    assert answer.status_code in (200, 429)
    return answer.status_code == 200


@contextmanager
def falling_silent(*said: Any) -> Iterator[Iterator[Any]]:
    over = threading.Event()

    def messages() -> Iterator[Any]:
        yield from said
        over.wait(60)

    try:
        yield messages()
    finally:
        over.set()


def assert_ends_in_time(answers: Any) -> None:
    with pytest.raises(grpc.RpcError) as raised:
        list(answers)
    error: Any = raised.value
    assert error.code() == StatusCode.DEADLINE_EXCEEDED
    metadata = dict(error.trailing_metadata())
    assert metadata["lln-error-code"] == "body_timeout"
    assert metadata["lln-error-limit"] == str(SILENCE_S)
