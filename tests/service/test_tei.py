"""The API of text-embeddings-inference, over HTTP and gRPC."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import grpc
import httpx
import numpy as np
import pytest
from google.protobuf.descriptor import FieldDescriptor
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError

from service.pb.tei.v1 import tei_pb2 as pb
from tests.engine.precisions import USED_AS_INT8, needs_reduced_int8
from tests.service.outside import vectors_of
from tests.service.stubs import tei_info_stub, tei_stub

if TYPE_CHECKING:
    from tests.conftest import WriteCheckpoint

TEXTS = ["The cat sat on the mat.", "A much longer text, of two clauses, about nothing."]


def test_embed_gives_a_bare_list_of_the_same_vectors(http: httpx.Client) -> None:
    response = http.post("/embed", json={"inputs": TEXTS})
    assert response.json() == vectors_of(http, input=TEXTS)
    assert int(response.headers["x-compute-tokens"]) > 0
    assert response.headers["x-inference-time"].isdecimal()


def test_a_lone_text_is_a_list_of_one(http: httpx.Client) -> None:
    assert http.post("/embed", json={"inputs": TEXTS[0]}).json() == vectors_of(
        http, input=[TEXTS[0]]
    )


def test_token_ids_are_inputs_too(http: httpx.Client) -> None:
    ids = http.post("/v1/tokenize", json={"text": TEXTS[0]}).json()["ids"][1:-1]
    [by_ids] = http.post("/embed", json={"inputs": [ids]}).json()
    [by_text] = http.post("/embed", json={"inputs": [TEXTS[0]]}).json()
    assert by_ids == pytest.approx(by_text, abs=2e-6)


def test_options(http: httpx.Client) -> None:
    [short] = http.post("/embed", json={"inputs": TEXTS[0], "dimensions": 7}).json()
    assert len(short) == 7
    assert np.linalg.norm(short) == pytest.approx(1, abs=1e-5)
    [raw] = http.post("/embed", json={"inputs": TEXTS[0], "normalize": False}).json()
    assert np.linalg.norm(raw) > 1.1
    named = {"inputs": TEXTS[0], "model": "sentence-transformers/all-MiniLM-L6-v2"}
    assert len(http.post("/embed", json=named).json()[0]) == 384


def test_embed_all_gives_the_states_that_the_vector_is_the_mean_of(http: httpx.Client) -> None:
    states = http.post("/embed_all", json={"inputs": TEXTS}).json()
    lengths = [http.post("/v1/tokenize", json={"text": text}).json()["count"] for text in TEXTS]
    assert [len(tokens) for tokens in states] == lengths
    pooled = http.post("/embed", json={"inputs": TEXTS, "normalize": False}).json()
    for tokens, vector in zip(states, pooled, strict=True):
        assert np.mean(tokens, axis=0) == pytest.approx(vector, abs=1e-5)


def test_truncation_by_request(start_server: Any) -> None:
    server = start_server(
        LLN_MODELS="default",
        LLN_ENGINE__MAX_TEXT_TOKENS="16",
        LLN_ENGINE__MAX_TOKEN_STATES="20",
    )
    numbers = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
    words = [*numbers, *numbers]
    with httpx.Client(base_url=server.http_url) as http:

        def embed(words: list[str], **options: Any) -> Any:
            return http.post("/embed", json={"inputs": " ".join(words), **options}).json()

        assert embed(words)["error"]["code"] == "text_too_long"
        kept_start = embed(words[:14])
        assert embed(words, truncate=True) == kept_start
        assert embed(words, truncate=True, truncation_direction="Right") == kept_start
        assert embed(words, truncate=True, truncation_direction="left") == embed(words[-14:])

        too_many = http.post("/embed_all", json={"inputs": [" ".join(numbers)] * 2})
        error = too_many.json()["error"]
        assert too_many.status_code == 400
        assert (error["code"], error["limit"], error["actual"]) == ("too_many_token_states", 20, 24)


def test_an_unknown_prompt_is_told_alike_by_tokens_and_vectors(http: httpx.Client) -> None:
    body = {"inputs": "a text", "prompt_name": "haiku"}
    told = [http.post(path, json=body).json()["error"] for path in ("/tokenize", "/embed")]
    assert told[0] == told[1]
    assert told[0]["message"] == "default has no prompt 'haiku'; it has: none"


def test_info_has_the_fields_that_clients_look_for(http: httpx.Client) -> None:
    info = http.get("/info").json()
    assert info["model_id"] == "default"
    assert info["model_type"] == {"embedding": {"pooling": "mean"}}
    assert info["model_dtype"] == "float32"
    assert info["max_input_length"] == 1_048_576
    assert info["max_client_batch_size"] == 2_048
    assert info["auto_truncate"] is False


@needs_reduced_int8
def test_a_server_in_int8_says_so(start_server: Any, write_checkpoint: WriteCheckpoint) -> None:
    server = start_server(LLN_MODELS=str(write_checkpoint("bert")), LLN_ENGINE__DTYPE="int8")
    with httpx.Client(base_url=server.http_url) as http:
        assert http.get("/info").json()["model_dtype"] == USED_AS_INT8
        assert http.get("/v1/models").json()["data"][0]["dtype"] == USED_AS_INT8
        assert f'dtype="{USED_AS_INT8}"' in http.get("/metrics").text
        alone, [_, beside] = (
            http.post("/embed", json={"inputs": inputs}).json()
            for inputs in (["a cat"], ["the dog and the cat", "a cat"])
        )
    assert alone == [beside]


def test_health(http: httpx.Client) -> None:
    assert http.get("/health").status_code == 200


def test_huggingface_hubs_client(server: Any, http: httpx.Client) -> None:
    client = InferenceClient(server.http_url + "/embed")
    found = client.feature_extraction(TEXTS, normalize=True, truncate=True)
    assert found.shape == (2, 384)
    assert found == pytest.approx(np.array(vectors_of(http, input=TEXTS)), abs=1e-6)
    with pytest.raises(HfHubHTTPError, match="empty string"):
        client.feature_extraction("")


TEXT = "The cat sat on the mat."

# As in the public proto file, from which other clients are compiled.
_RANK_OPTIONS = {
    "truncate": (3, FieldDescriptor.TYPE_BOOL),
    "raw_scores": (4, FieldDescriptor.TYPE_BOOL),
    "return_text": (5, FieldDescriptor.TYPE_BOOL),
    "truncation_direction": (6, FieldDescriptor.TYPE_ENUM),
}
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
    "RerankRequest": {
        "query": (1, FieldDescriptor.TYPE_STRING),
        "texts": (2, FieldDescriptor.TYPE_STRING),
        **_RANK_OPTIONS,
    },
    "RerankStreamRequest": {
        "query": (1, FieldDescriptor.TYPE_STRING),
        "text": (2, FieldDescriptor.TYPE_STRING),
        **_RANK_OPTIONS,
    },
    "Rank": {
        "index": (1, FieldDescriptor.TYPE_UINT32),
        "text": (2, FieldDescriptor.TYPE_STRING),
        "score": (3, FieldDescriptor.TYPE_FLOAT),
    },
    "RerankResponse": {
        "ranks": (1, FieldDescriptor.TYPE_MESSAGE),
        "metadata": (2, FieldDescriptor.TYPE_MESSAGE),
    },
    "EncodeRequest": {
        "inputs": (1, FieldDescriptor.TYPE_STRING),
        "add_special_tokens": (2, FieldDescriptor.TYPE_BOOL),
        "prompt_name": (3, FieldDescriptor.TYPE_STRING),
    },
    "SimpleToken": {
        "id": (1, FieldDescriptor.TYPE_UINT32),
        "text": (2, FieldDescriptor.TYPE_STRING),
        "special": (3, FieldDescriptor.TYPE_BOOL),
        "start": (4, FieldDescriptor.TYPE_UINT32),
        "stop": (5, FieldDescriptor.TYPE_UINT32),
    },
    "EncodeResponse": {"tokens": (1, FieldDescriptor.TYPE_MESSAGE)},
    "DecodeRequest": {
        "ids": (1, FieldDescriptor.TYPE_UINT32),
        "skip_special_tokens": (2, FieldDescriptor.TYPE_BOOL),
    },
    "DecodeResponse": {"text": (1, FieldDescriptor.TYPE_STRING)},
}


@pytest.fixture(scope="module")
def embed(channel: grpc.Channel) -> Any:
    return tei_stub(channel)


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
        "Rerank/Rerank": (False, False),
        "Rerank/RerankStream": (True, False),
        "Tokenize/Tokenize": (False, False),
        "Tokenize/TokenizeStream": (True, True),
        "Tokenize/Decode": (False, False),
        "Tokenize/DecodeStream": (True, True),
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


@pytest.mark.long
def test_states_of_a_long_text_do_not_block_the_loop(server: Any, http: httpx.Client) -> None:
    options = [("grpc.max_receive_message_length", -1)]
    slowest = 0.0
    with grpc.insecure_channel(server.grpc_address, options) as channel:
        stub = tei_stub(channel)
        call = stub.EmbedAll.future(pb.EmbedAllRequest(inputs="word " * 10_000))
        while not call.done():
            asked_at = time.perf_counter()
            assert http.get("/health/live").status_code == 200
            slowest = max(slowest, time.perf_counter() - asked_at)
            time.sleep(0.02)  # questions without a pause would take the core that reads the text
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


def test_an_unknown_truncation_direction(embed: Any) -> None:
    request = pb.EmbedRequest(inputs=TEXT, truncation_direction=7)  # type: ignore[arg-type]
    with pytest.raises(grpc.RpcError, match=r"truncation_direction must be .* got 7") as raised:
        embed.Embed(request)
    error: Any = raised.value
    details = dict(error.trailing_metadata())
    assert details["lln-error-limit"] == "TRUNCATION_DIRECTION_RIGHT, TRUNCATION_DIRECTION_LEFT"


def test_info(channel: grpc.Channel) -> None:
    stub = tei_info_stub(channel)
    info = stub.Info(pb.InfoRequest())
    assert (info.model_id, info.max_input_length) == ("default", 1_048_576)
    assert info.model_type == pb.MODEL_TYPE_EMBEDDING
    assert not info.HasField("sha")
