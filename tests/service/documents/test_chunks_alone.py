"""Documents whose own vector is not asked for: over HTTP, as streams, over gRPC, by the client."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import grpc
import httpx
import numpy as np
import pytest
from numpy.typing import NDArray

from service.client import LLNClient, LLNClientError
from service.pb.lln.v1 import embeddings_pb2 as pb
from service.pb.lln.v1 import models_pb2
from tests.service.stubs import embeddings_stub, models_stub

if TYPE_CHECKING:
    from tests.service.conftest import RunningServer

TEXT = "# Ships\n\n" + " ".join(f"Sentence {number} speaks of the sea." for number in range(90))
FIXED = {"type": "fixed", "tokens": 64}
READ_ONCE = ("linked", "opening", "alone")
CONTEXTS = (*READ_ONCE, "balanced", "late")


def asked(context: str, **fields: Any) -> dict[str, Any]:
    return {"text": TEXT, "chunking": {**FIXED, "context": context}, **fields}


def ask(http: httpx.Client, context: str, **fields: Any) -> dict[str, Any]:
    response = http.post("/v1/documents", json=asked(context, **fields))
    assert response.status_code == 200, response.text
    document: dict[str, Any] = response.json()
    return document


@pytest.fixture(scope="module")
def with_vector(server: RunningServer) -> Callable[[str], dict[str, Any]]:
    """The document with its own vector, which is read once for each context."""

    @cache
    def read(context: str) -> dict[str, Any]:
        with httpx.Client(base_url=server.http_url, timeout=60) as http:
            return ask(http, context)

    return read


def check_saved(cost: dict[str, Any], whole: dict[str, Any], context: str) -> None:
    names = ("tokens", "tokens_embedded", "dropped", "tokens_alone")
    assert [cost[name] for name in names] == [whole[name] for name in names]
    assert whole["tokens_saved"] == 0
    assert cost["tokens_saved"] == (cost["tokens"] if context in READ_ONCE else 0)


@pytest.mark.parametrize("context", CONTEXTS)
def test_the_chunks_are_the_same(
    http: httpx.Client, with_vector: Callable[[str], dict[str, Any]], context: str
) -> None:
    whole, found = with_vector(context), ask(http, context, vector=False)
    assert list(found) == list(whole)
    assert found["vector"] is None
    assert whole["vector"] is not None
    assert found["chunks"] == whole["chunks"]
    assert found["usage"] == whole["usage"]
    check_saved(found["accounting"], whole["accounting"], context)


def test_shares_that_leave_the_document_out_save_its_reading(http: httpx.Client) -> None:
    chunking = {**FIXED, "context": "late", "alone": 1, "opening": 0.2}
    fields = {"text": TEXT, "chunking": chunking, "title": "Of ships"}
    whole = http.post("/v1/documents", json=fields).json()
    found = http.post("/v1/documents", json={**fields, "vector": False}).json()
    assert found["chunks"] == whole["chunks"]
    assert found["accounting"]["tokens_saved"] == found["accounting"]["tokens"]


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("form", ["json", "text"])
def test_a_stream(
    http: httpx.Client, with_vector: Callable[[str], dict[str, Any]], context: str, form: str
) -> None:
    whole = with_vector(context)
    accept = {"accept": "application/x-ndjson"}
    if form == "json":
        answer = http.post("/v1/documents", json=asked(context, vector=False), headers=accept)
    else:
        query = {"chunking": "fixed", "tokens": "64", "context": context, "vector": "false"}
        headers = accept | {"content-type": "text/plain; charset=utf-8"}
        answer = http.post("/v1/documents", params=query, content=TEXT, headers=headers)
    events = [json.loads(line) for line in answer.text.splitlines()]
    *before, result = events
    assert result["event"] == "result"
    assert result["vector"] is None
    assert result["num_chunks"] == len(whole["chunks"])
    check_saved(result["accounting"], whole["accounting"], context)
    chunks = [chunk for event in before for chunk in event.get("chunks", [])]
    assert chunks == whole["chunks"]
    progress = [event for event in before if event["event"] == "progress"]
    done = [event["tokens_done"] for event in progress]
    assert done == sorted(done)
    assert done[-1] == progress[-1]["tokens_total"] == whole["accounting"]["tokens"]
    if context in READ_ONCE:
        names = [event["event"] for event in before]
        assert names == ["accepted", *["progress"] * len(progress), "chunks"]


def grpc_events(channel: grpc.Channel, *, record: bool = False, **options: Any) -> list[Any]:
    opened = pb.DocumentOptions(with_record=record, **options)
    messages = [pb.EmbedDocumentRequest(open=opened, text=TEXT.encode())]
    return list(embeddings_stub(channel).EmbedDocument(iter(messages)))


def chunk_vectors(events: list[Any]) -> list[bytes]:
    return [chunk.vector.data for event in events for chunk in event.chunks.chunks]


@pytest.mark.parametrize("context", CONTEXTS)
def test_over_grpc(channel: grpc.Channel, context: str) -> None:
    plan = pb.Chunking(fixed=pb.FixedChunks(tokens=64), context=context)
    whole = grpc_events(channel, chunking=plan)
    with_it = grpc_events(channel, chunking=plan, vector=True)
    found = grpc_events(channel, chunking=plan, vector=False)
    assert chunk_vectors(found) == chunk_vectors(with_it) == chunk_vectors(whole) != []
    assert whole[-1].result.HasField("vector")
    assert with_it[-1].result.vector == whole[-1].result.vector
    result = found[-1].result
    assert not result.HasField("vector")
    assert result.num_chunks == whole[-1].result.num_chunks
    cost = result.accounting
    assert cost.tokens_alone == whole[-1].result.accounting.tokens_alone
    assert cost.tokens_saved == (cost.tokens if context in READ_ONCE else 0)
    assert whole[-1].result.accounting.tokens_saved == 0


def test_the_client(server: RunningServer) -> None:
    client = LLNClient(server.http_url)
    chunking = {**FIXED, "context": "linked"}
    whole = client.embed_document(TEXT, chunking=chunking)
    found = client.embed_document(TEXT, chunking=chunking, vector=False)
    assert found.vector is None
    np.testing.assert_array_equal(_vectors(found.chunks), _vectors(whole.chunks))
    cost = found.details["accounting"]
    assert cost["tokens_saved"] == cost["tokens"]
    with pytest.raises(LLNClientError) as caught:
        client.embed_document(TEXT, vector=False)
    assert caught.value.code == "nothing_asked_for"


def _vectors(chunks: list[dict[str, Any]]) -> NDArray[np.float32]:
    return np.stack([chunk["vector"] for chunk in chunks])


@pytest.mark.parametrize("accept", ["application/json", "application/x-ndjson"])
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"vector": False}, (400, "nothing_asked_for", "vector")),
        ({"vector": False, "chunking": {"type": "none"}}, (400, "nothing_asked_for", "vector")),
        (asked("linked", vector=False, record=True), (400, "vector_of_record", "vector")),
        (asked("late", vector=False, record=True), (400, "vector_of_record", "vector")),
        ({"vector": "perhaps"}, (422, "invalid_field", "vector")),
    ],
)
def test_refused(
    http: httpx.Client, accept: str, fields: dict[str, Any], expected: tuple[int, str, str]
) -> None:
    body = {"text": TEXT, **fields}
    answer = http.post("/v1/documents", json=body, headers={"accept": accept})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == expected


def test_refused_over_grpc(channel: grpc.Channel) -> None:
    plan = pb.Chunking(fixed=pb.FixedChunks(tokens=64))
    for options, code in (
        ({"vector": False}, "nothing_asked_for"),
        ({"vector": False, "chunking": plan, "record": True}, "vector_of_record"),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            grpc_events(channel, **options)
        error: Any = caught.value
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        parts = dict(error.trailing_metadata())
        assert (parts["lln-error-code"], parts["lln-error-param"]) == (code, "vector")


@pytest.mark.parametrize("context", CONTEXTS)
def test_a_plan(http: httpx.Client, channel: grpc.Channel, context: str) -> None:
    size: dict[str, Any] = {"tokens": 8_192, "context": context}
    whole = http.post("/v1/plan", json=size).json()
    found = http.post("/v1/plan", json={**size, "vector": False}).json()
    message = models_stub(channel).Plan(models_pb2.PlanRequest(**size, vector=False))
    assert message.tokens_read == found["tokens_read"]
    assert (found["tokens"], found["tokens_alone"]) == (8_192, whole["tokens_alone"])
    assert found["tokens_read"] == (0 if context in READ_ONCE else 8_192)
    if context in READ_ONCE:
        assert found["seconds"] < 0.8 * whole["seconds"]
    for wrong in ({"tokens": 9}, {"text": "x", "record": "AAAA", "context": None}):
        error = http.post("/v1/plan", json={**wrong, "vector": False}).json()["error"]
        assert error["param"] == "vector"
