"""Embeddings.EmbedDocument with a record: sent and answered in pieces, with the vectors of HTTP."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import grpc
import httpx
import numpy as np
import pytest

from service.pb.lln.v1 import embeddings_pb2 as pb
from tests.service.stubs import embeddings_stub

if TYPE_CHECKING:
    from tests.service.conftest import RunningServer

TEXT = "\n\n".join(
    f"Paragraph {number} speaks of ships and of the sea, of {number * 7} sails and of a harbour "
    f"that lies {number} miles to the north of the lighthouse." * 2
    for number in range(60)
)
CHANGED = f"{TEXT}\n\nThe ships came home."
CHUNKING = pb.Chunking(fixed=pb.FixedChunks(tokens=128), context="late")


@pytest.fixture(scope="module")
def embed(channel: grpc.Channel) -> Any:
    return embeddings_stub(channel).EmbedDocument


@pytest.fixture(scope="module")
def over_http(server: RunningServer) -> dict[str, Any]:
    """The same update over HTTP, and the record that it goes on from."""
    chunking = {"type": "fixed", "tokens": 128, "context": "late"}
    shared = {"chunking": chunking, "encoding_format": "base64"}
    with httpx.Client(base_url=f"{server.http_url}/v1", timeout=60) as http:
        first = http.post("/documents", json={"text": TEXT, "record": True, **shared}).json()
        body = {"text": CHANGED, "record": first["record"], **shared}
        return {"before": first["record"], **http.patch("/documents", json=body).json()}


def requests(
    text: str, record: bytes = b"", size: int = 5_000, **options: Any
) -> Iterator[pb.EmbedDocumentRequest]:
    """The first piece of the record comes with the options; text and record alternate after it."""
    records = [record[at : at + size] for at in range(0, len(record), size)] or [b""]
    opening = pb.DocumentOptions(chunking=CHUNKING, **options)
    yield pb.EmbedDocumentRequest(open=opening, record=records[0])
    data = text.encode()
    texts = (data[at : at + size] for at in range(0, len(data), size))
    for piece, part in zip_longest(texts, records[1:], fillvalue=b""):
        yield pb.EmbedDocumentRequest(text=piece, record=part)


def test_an_update_is_that_of_http(embed: Any, over_http: dict[str, Any]) -> None:
    *events, last = embed(requests(CHANGED, base64.b64decode(over_http["before"])))
    result = last.result
    vector = np.frombuffer(base64.b64decode(over_http["vector"]), "<f4")
    np.testing.assert_array_equal(np.frombuffer(result.vector.data, "<f4"), vector)
    record = b"".join(event.record.data for event in events)
    assert record == base64.b64decode(over_http["record"])
    assert 0 < result.tokens_read < result.accounting.tokens
    for name in ("tokens_read", "segments", "segments_read", "staleness", "rounds"):
        assert getattr(result, name) == over_http[name]
    assert list(result.gone) == over_http["gone"]
    chunks = [chunk for event in events for chunk in event.chunks.chunks]
    found = [chunk.previous if chunk.HasField("previous") else None for chunk in chunks]
    assert found == [chunk["previous"] for chunk in over_http["chunks"]]


def test_a_first_record(embed: Any, over_http: dict[str, Any]) -> None:
    *events, _ = embed(requests(TEXT, with_record=True))
    record = b"".join(event.record.data for event in events)
    assert record == base64.b64decode(over_http["before"])


def test_a_document_without_a_record_has_none(embed: Any) -> None:
    *events, last = embed(requests(TEXT[:400]))
    assert not any(event.HasField("record") for event in events)
    assert not last.result.HasField("tokens_read")


@pytest.mark.parametrize(
    ("record", "options", "code"),
    [
        (b"x" * 200, {}, "invalid_record"),
        (b"", {"with_record": True, "record_precision": "int4"}, "invalid_field"),
        (b"", {"with_record": True, "max_staleness": 0.1}, "no_record"),
        (b"", {"with_record": True, "exact": True}, "no_record"),
        (b"", {"exact": True}, "unknown_field"),
        (b"", {"max_staleness": 0.0}, "unknown_field"),
        (b"", {"record_precision": "float16"}, "unknown_field"),
        (b"", {"fold": True}, "unknown_field"),
        (b"x" * 200, {"fold": True}, "unknown_field"),
        (b"x" * 200, {"record_precision": "float16"}, "unknown_field"),
    ],
)
def test_bad_records_are_refused(
    embed: Any, record: bytes, options: dict[str, Any], code: str
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        list(embed(requests(TEXT, record, **options)))
    error: Any = caught.value
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert dict(error.trailing_metadata())["lln-error-code"] == code


def test_a_record_that_comes_late_is_refused(embed: Any) -> None:
    pieces = [
        pb.EmbedDocumentRequest(open=pb.DocumentOptions(), text=b"A text."),
        pb.EmbedDocumentRequest(record=b"late"),
    ]
    with pytest.raises(grpc.RpcError) as caught:
        list(embed(iter(pieces)))
    error: Any = caught.value
    assert dict(error.trailing_metadata())["lln-error-code"] == "late_record"
