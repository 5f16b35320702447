"""gRPC messages are looked at before they are decoded: few bytes may stand for many objects."""

from __future__ import annotations

from typing import Any

import pytest

from engine.steps import finish
from service.errors import UnreadableBody
from service.grpc.decoding import Undecodable, decoder
from service.grpc.wire import MAX_FIELDS, MAX_NUMBERS, excess_steps
from service.pb.lln.v1 import embeddings_pb2 as pb


def _many_inputs(count: int) -> bytes:
    return pb.EmbedRequest(input=[pb.Input()]).SerializeToString() * count


@pytest.mark.parametrize(
    "data",
    [
        _many_inputs(MAX_FIELDS + 1),
        pb.EmbedDocumentRequest(
            open=pb.DocumentOptions(
                chunking=pb.Chunking(
                    spans=pb.SpanChunks(spans=[pb.CharacterSpan()] * (MAX_FIELDS + 1))
                )
            )
        ).SerializeToString(),
    ],
    ids=["inputs", "spans"],
)
def test_messages_that_would_swell_are_refused(data: bytes) -> None:
    kind: Any = pb.EmbedRequest if data[:1] == _many_inputs(1)[:1] else pb.EmbedDocumentRequest
    found = finish(decoder(kind, 2**25)(data))
    assert isinstance(found, Undecodable)
    assert isinstance(found.error, UnreadableBody)
    assert (found.error.code, found.error.limit) == ("too_many_fields", MAX_FIELDS)


def test_more_token_ids_than_any_text_has_are_refused() -> None:
    ids = pb.TokenIds(ids=bytes(MAX_NUMBERS // 2 + 1))
    data = pb.EmbedRequest(input=[pb.Input(token_ids=ids)] * 2).SerializeToString()
    found = finish(decoder(pb.EmbedRequest, 2**26)(data))
    assert isinstance(found, Undecodable)
    assert (found.error.code, found.error.limit) == ("too_many_values", MAX_NUMBERS)


@pytest.mark.parametrize(
    "message",
    [
        pb.EmbedRequest(input=[pb.Input(text="word " * 40)] * 2048),
        pb.EmbedRequest(input=[pb.Input(token_ids=pb.TokenIds(ids=[101] * 200_000))]),
    ],
    ids=["texts", "ids"],
)
def test_large_messages_are_decoded(message: pb.EmbedRequest) -> None:
    assert finish(decoder(pb.EmbedRequest, 2**25)(message.SerializeToString())) == message


def test_messages_of_many_parts_are_looked_at_with_pauses() -> None:
    """Others have their turn long before all parts have been counted."""
    data = _many_inputs(MAX_FIELDS // 2)
    num_pauses = sum(1 for _ in excess_steps(data, pb.EmbedRequest))
    assert num_pauses >= 50


@pytest.mark.parametrize("tail", [b"\xff" * 11, b"\x0a\xff\xff\xff\xff\x0f", b"\x0b", b"\x08"])
def test_broken_messages_are_left_to_protobuf(tail: bytes) -> None:
    data = pb.EmbedRequest(input=[pb.Input(text="x" * 100_000)]).SerializeToString() + tail
    found = finish(decoder(pb.EmbedRequest, 2**25)(data))
    assert isinstance(found, Undecodable)
    assert found.error.code == "invalid_message"
