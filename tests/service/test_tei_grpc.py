"""tei.v1 over gRPC: the contract's names and numbers, and what the services answer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from google.protobuf.descriptor import FieldDescriptor

from service.pb.tei.v1 import tei_pb2 as pb
from service.pb.tei.v1 import tei_pb2_grpc

TEXT = "The cat sat on the mat."

# As published; a client compiled from the public file knows nothing else.
CONTRACT = {
    "EmbedRequest": {
        "inputs": (1, FieldDescriptor.TYPE_STRING),
        "truncate": (2, FieldDescriptor.TYPE_BOOL),
        "normalize": (3, FieldDescriptor.TYPE_BOOL),
        "truncation_direction": (4, FieldDescriptor.TYPE_ENUM),
        "prompt_name": (5, FieldDescriptor.TYPE_STRING),
        "dimensions": (6, FieldDescriptor.TYPE_UINT32),
    },
    "EmbedResponse": {
        "embeddings": (1, FieldDescriptor.TYPE_FLOAT),
        "metadata": (2, FieldDescriptor.TYPE_MESSAGE),
    },
    "EmbedAllRequest": {
        "inputs": (1, FieldDescriptor.TYPE_STRING),
        "truncate": (2, FieldDescriptor.TYPE_BOOL),
        "truncation_direction": (3, FieldDescriptor.TYPE_ENUM),
        "prompt_name": (4, FieldDescriptor.TYPE_STRING),
    },
    "EmbedAllResponse": {
        "token_embeddings": (1, FieldDescriptor.TYPE_MESSAGE),
        "metadata": (2, FieldDescriptor.TYPE_MESSAGE),
    },
    "TokenEmbedding": {"embeddings": (1, FieldDescriptor.TYPE_FLOAT)},
    "Metadata": {
        "compute_chars": (1, FieldDescriptor.TYPE_UINT32),
        "compute_tokens": (2, FieldDescriptor.TYPE_UINT32),
        "total_time_ns": (3, FieldDescriptor.TYPE_UINT64),
        "tokenization_time_ns": (4, FieldDescriptor.TYPE_UINT64),
        "queue_time_ns": (5, FieldDescriptor.TYPE_UINT64),
        "inference_time_ns": (6, FieldDescriptor.TYPE_UINT64),
    },
    "InfoRequest": {},
    "InfoResponse": {
        "version": (1, FieldDescriptor.TYPE_STRING),
        "sha": (2, FieldDescriptor.TYPE_STRING),
        "docker_label": (3, FieldDescriptor.TYPE_STRING),
        "model_id": (4, FieldDescriptor.TYPE_STRING),
        "model_sha": (5, FieldDescriptor.TYPE_STRING),
        "model_dtype": (6, FieldDescriptor.TYPE_STRING),
        "model_type": (7, FieldDescriptor.TYPE_ENUM),
        "max_concurrent_requests": (8, FieldDescriptor.TYPE_UINT32),
        "max_input_length": (9, FieldDescriptor.TYPE_UINT32),
        "max_batch_tokens": (10, FieldDescriptor.TYPE_UINT32),
        "max_batch_requests": (11, FieldDescriptor.TYPE_UINT32),
        "max_client_batch_size": (12, FieldDescriptor.TYPE_UINT32),
        "tokenization_workers": (13, FieldDescriptor.TYPE_UINT32),
    },
}


@pytest.fixture(scope="module")
def channel(server: Any) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(server.grpc_address) as channel:
        yield channel


@pytest.fixture(scope="module")
def embed(channel: grpc.Channel) -> Any:
    return tei_pb2_grpc.EmbedStub(channel)  # type: ignore[no-untyped-call]


def test_messages_are_those_of_the_public_contract() -> None:
    assert pb.DESCRIPTOR.package == "tei.v1"
    ours = {
        name: {field.name: (field.number, field.type) for field in message.fields}
        for name, message in pb.DESCRIPTOR.message_types_by_name.items()
    }
    assert ours == CONTRACT


def test_methods_are_those_of_the_public_contract() -> None:
    shapes = {
        f"{service.name}/{method.name}": (method.client_streaming, method.server_streaming)
        for service in pb.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    assert shapes == {
        "Info/Info": (False, False),
        "Embed/Embed": (False, False),
        "Embed/EmbedStream": (True, True),
        "Embed/EmbedAll": (False, False),
        "Embed/EmbedAllStream": (True, True),
    }


def test_embed(embed: Any, http: httpx.Client) -> None:
    answer = embed.Embed(pb.EmbedRequest(inputs=TEXT))
    assert list(answer.embeddings) == pytest.approx(
        http.post("/embed", json={"inputs": TEXT}).json()[0], abs=1e-6
    )
    assert answer.metadata.compute_chars == len(TEXT)
    assert answer.metadata.compute_tokens == 9
    assert answer.metadata.total_time_ns >= answer.metadata.inference_time_ns > 0


def test_embed_options(embed: Any) -> None:
    raw = embed.Embed(pb.EmbedRequest(inputs=TEXT, normalize=False)).embeddings
    assert np.linalg.norm(raw) > 1.1
    assert len(embed.Embed(pb.EmbedRequest(inputs=TEXT, dimensions=5)).embeddings) == 5


def test_embed_all(embed: Any) -> None:
    states = embed.EmbedAll(pb.EmbedAllRequest(inputs=TEXT)).token_embeddings
    mean = np.mean([state.embeddings for state in states], axis=0)
    raw = embed.Embed(pb.EmbedRequest(inputs=TEXT, normalize=False)).embeddings
    assert mean == pytest.approx(np.array(raw), abs=1e-5)


def test_states_of_a_long_text_hold_up_no_probe(server: Any, http: httpx.Client) -> None:
    options = [("grpc.max_receive_message_length", -1)]
    slowest = 0.0
    with grpc.insecure_channel(server.grpc_address, options) as channel:
        stub: Any = tei_pb2_grpc.EmbedStub(channel)  # type: ignore[no-untyped-call]
        call = stub.EmbedAll.future(pb.EmbedAllRequest(inputs="word " * 10_000))
        while not call.done():
            asked_at = time.perf_counter()
            assert http.get("/health/live").status_code == 200
            slowest = max(slowest, time.perf_counter() - asked_at)
        assert len(call.result().token_embeddings) == 10_002
    assert slowest < 1


def test_streams_answer_in_order(embed: Any) -> None:
    texts = [f"Text number {number}." for number in range(100)]
    streamed = list(embed.EmbedStream(pb.EmbedRequest(inputs=text) for text in texts))
    assert len(streamed) == 100
    alone = embed.Embed(pb.EmbedRequest(inputs=texts[61])).embeddings
    assert list(streamed[61].embeddings) == pytest.approx(list(alone), abs=2e-6)
    states = list(embed.EmbedAllStream(pb.EmbedAllRequest(inputs=text) for text in texts[:3]))
    assert [len(answer.token_embeddings) for answer in states] == [6, 6, 6]


def test_the_first_failure_ends_a_stream(embed: Any) -> None:
    answers = embed.EmbedStream(pb.EmbedRequest(inputs=text) for text in (TEXT, "", TEXT))
    assert len(next(answers).embeddings) == 384
    with pytest.raises(grpc.RpcError) as raised:
        next(answers)
    error: Any = raised.value
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_a_direction_that_there_is_not(embed: Any) -> None:
    request = pb.EmbedRequest(inputs=TEXT, truncation_direction=7)  # type: ignore[arg-type]
    with pytest.raises(grpc.RpcError, match="truncation_direction is 7"):
        embed.Embed(request)


def test_info(channel: grpc.Channel) -> None:
    stub: Any = tei_pb2_grpc.InfoStub(channel)  # type: ignore[no-untyped-call]
    info = stub.Info(pb.InfoRequest())
    assert (info.model_id, info.max_input_length) == ("default", 1_048_576)
    assert info.model_type == pb.MODEL_TYPE_EMBEDDING
    assert not info.HasField("sha")
