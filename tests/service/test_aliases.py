"""Other names of models, for clients with fixed names, and token ids of other tokenizers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import httpx
import openai
import pytest
from pydantic import SecretStr

from engine import AsyncEngine
from engine.errors import InvalidInput
from service.pb.lln.v1 import embeddings_pb2 as pb
from service.pb.lln.v1 import models_pb2
from tests.service.outside import vectors_of
from tests.service.stubs import embeddings_stub, models_stub

SMALL, ADA = "text-embedding-3-small", "text-embedding-ada-002"
TEXT = "Hello, world"
THEIR_IDS = [9906, 11, 1917]
"""The text in the vocabulary of OpenAI's models, as LangChain sends it by default."""


@pytest.fixture(scope="module")
def aliased(launch_server: Any) -> Any:
    return launch_server(LLN_MODELS="default", LLN_MODEL_ALIASES=f"{SMALL}=default,{ADA}=default")


@pytest.fixture
def aliased_http(aliased: Any) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=aliased.http_url, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def aliased_channel(aliased: Any) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(aliased.grpc_address) as channel:
        yield channel


def test_openais_client_with_its_own_names(aliased: Any, aliased_http: httpx.Client) -> None:
    client = openai.OpenAI(base_url=f"{aliased.http_url}/v1", api_key="none", max_retries=0)
    assert [model.id for model in client.models.list()] == ["default", SMALL, ADA]
    assert client.models.retrieve(ADA).id == ADA
    answer = client.embeddings.create(model=SMALL, input=TEXT, encoding_format="float")
    assert answer.model == SMALL
    [expected] = vectors_of(aliased_http, input=[TEXT], model="default")
    assert answer.data[0].embedding == pytest.approx(expected, abs=1e-6)


def test_langchain_with_its_default_model(aliased: Any, aliased_http: httpx.Client) -> None:
    from langchain_openai import OpenAIEmbeddings

    embeddings = OpenAIEmbeddings(
        base_url=f"{aliased.http_url}/v1",
        api_key=SecretStr("unused"),
        check_embedding_ctx_length=False,
    )
    assert embeddings.model == ADA
    [expected] = vectors_of(aliased_http, input=[TEXT])
    assert embeddings.embed_query(TEXT) == pytest.approx(expected, abs=1e-6)


def test_every_route_takes_an_alias(aliased_http: httpx.Client) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "/v1/documents": {"text": TEXT},
        "/v1/tokenize": {"text": TEXT},
        "/v1/plan": {"tokens": 7},
        "/v1/structure": {"text": TEXT},
        "/v1/attention/map": {"text": TEXT, "layer": 0, "head": 0},
        "/v1/diagnostics": {"text": TEXT, "layers": [0], "instruments": ["entropy"]},
        "/embed": {"inputs": TEXT},
        "/embed_all": {"inputs": TEXT},
    }
    for path, body in bodies.items():
        answer = aliased_http.post(path, json={**body, "model": SMALL})
        assert answer.status_code == 200, answer.text
    model = aliased_http.get(f"/v1/models/{SMALL}").json()
    assert (model["id"], model["name"], model["aliases"]) == (SMALL, "default", [SMALL, ADA])


def test_grpc(aliased_channel: grpc.Channel, aliased_http: httpx.Client) -> None:
    answer = embeddings_stub(aliased_channel).Embed(
        pb.EmbedRequest(model=SMALL, input=[pb.Input(text=TEXT)])
    )
    assert answer.model == "default"
    models = models_stub(aliased_channel)
    assert list(models.Get(models_pb2.GetModelRequest(model=ADA)).aliases) == [SMALL, ADA]
    assert len(models.List(models_pb2.ListModelsRequest()).models) == 1


def test_ids_under_an_alias_are_refused(
    aliased_http: httpx.Client, aliased_channel: grpc.Channel
) -> None:
    ours = aliased_http.post("/v1/tokenize", json={"text": TEXT}).json()["ids"]
    for ids in (ours, THEIR_IDS):
        answer = aliased_http.post("/v1/embeddings", json={"input": ["a", ids], "model": ADA})
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"], error["actual"]) == (
            400,
            "foreign_token_ids",
            "input[1]",
            ADA,
        )
        assert "check_embedding_ctx_length=False" in error["message"]
    with pytest.raises(grpc.RpcError, match="check_embedding_ctx_length=False"):
        embeddings_stub(aliased_channel).Embed(
            pb.EmbedRequest(model=ADA, input=[pb.Input(token_ids=pb.TokenIds(ids=ours))])
        )


@pytest.mark.parametrize(
    ("ids", "code"), [(THEIR_IDS, "foreign_token_ids"), ([100_000], "invalid_token_id")]
)
def test_ids_that_only_another_tokenizer_writes(
    aliased_http: httpx.Client, ids: list[int], code: str
) -> None:
    error = aliased_http.post("/v1/embeddings", json={"input": [ids]}).json()["error"]
    assert error["code"] == code
    assert "check_embedding_ctx_length=False" in error["message"]


def test_an_unknown_name_is_told_all_names(aliased_http: httpx.Client) -> None:
    error = aliased_http.post("/v1/embeddings", json={"input": "x", "model": "gpt"}).json()["error"]
    assert error["limit"] == f"default, {SMALL}, {ADA}"


@pytest.mark.parametrize(
    ("aliases", "problem"),
    [
        ({"ada": "none"}, "the alias 'ada' stands for 'none', which is not served"),
        ({"default": "default"}, "the alias 'default' would hide the model of that name"),
    ],
)
def test_the_engine_refuses_bad_aliases(aliases: dict[str, str], problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        AsyncEngine.load(["default"], aliases=aliases)
