"""Embedders of other packages, as released, against the real server: only the address is ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import pytest
import tiktoken.registry
from openai import BadRequestError
from pydantic import SecretStr

from tests.service.outside import vectors_of

if TYPE_CHECKING:
    from tests.service.conftest import RunningServer

pytestmark = pytest.mark.long

TEXTS = ["The cat sat on the mat.", "Nothing of note happened.", "naïve 北京 🦊"]
LONG = " ".join(TEXTS[:2]) * 800
"""Some 10,000 tokens: more than OpenAI's models read, and read whole here."""


@pytest.fixture(scope="module")
def expected(server: RunningServer) -> Any:
    with httpx.Client(base_url=server.http_url, timeout=60) as http:
        return vectors_of(http, input=[*TEXTS, LONG], model="default")


def assert_same(found: Any, expected: Any) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, abs=2e-6)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20")
def test_llama_index(server: Any, expected: Any) -> None:
    from llama_index.embeddings.openai_like import OpenAILikeEmbedding

    with httpx.Client(timeout=60) as connection:
        embedder = OpenAILikeEmbedding(
            model_name="default",
            api_base=f"{server.http_url}/v1",
            api_key="unused",
            max_retries=0,
            http_client=connection,
        )
        assert_same(embedder.get_text_embedding_batch([*TEXTS, LONG]), expected)
        assert_same([embedder.get_query_embedding(TEXTS[0])], expected[:1])


def test_haystack(server: Any, expected: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HAYSTACK_TELEMETRY_ENABLED", "False")  # it would look for the network
    from haystack import Document
    from haystack.components.embedders import OpenAIDocumentEmbedder, OpenAITextEmbedder
    from haystack.utils import Secret

    options: Any = {
        "api_key": Secret.from_token("unused"),
        "model": "default",
        "api_base_url": f"{server.http_url}/v1",
    }
    documents = [Document(content=text) for text in [*TEXTS, LONG]]
    embedder = OpenAIDocumentEmbedder(**options, progress_bar=False)
    found = embedder.run(documents)["documents"]
    assert_same([document.embedding for document in found], expected)
    of_queries = OpenAITextEmbedder(**options)
    assert_same([of_queries.run(TEXTS[0])["embedding"]], expected[:1])
    for component in (embedder, of_queries):
        component.client.close()


def test_qdrant(http: httpx.Client) -> None:
    """Whole documents in one vector, and their late chunks in another, compared by MaxSim."""
    from qdrant_client import QdrantClient, models

    parts = ["Cats sleep all day.", "A lathe turns metal.", "Bread needs yeast."]
    texts = [" ".join([part] * 60) for part in parts]
    size, cosine = 384, models.Distance.COSINE
    by_best = models.MultiVectorConfig(comparator=models.MultiVectorComparator.MAX_SIM)
    store = QdrantClient(":memory:")
    store.create_collection(
        "documents",
        vectors_config={
            "whole": models.VectorParams(size=size, distance=cosine),
            "chunks": models.VectorParams(size=size, distance=cosine, multivector_config=by_best),
        },
    )
    for number, text in enumerate(texts):
        chunking = {"type": "fixed", "tokens": 64, "overlap": 0}
        body = {"model": "default", "text": text, "chunking": chunking}
        answer = http.post("/v1/documents", json=body).json()
        chunks = [chunk["vector"] for chunk in answer["chunks"]]
        assert len(chunks) > 3
        vectors = {"whole": answer["vector"], "chunks": chunks}
        store.upsert("documents", [models.PointStruct(id=number, vector=vectors)])
    for number, query in enumerate(
        ["Where do cats sleep?", "Turning metal", "Does bread need yeast?"]
    ):
        [vector] = vectors_of(http, input=[query], model="default")
        whole = store.query_points("documents", query=vector, using="whole").points
        assert whole[0].id == number
        best = store.query_points("documents", query=[vector], using="chunks").points
        assert best[0].id == number
    store.close()


@pytest.fixture
def tokens_of_openai(monkeypatch: pytest.MonkeyPatch) -> None:
    """An encoding of OpenAI's library without the file that it downloads: single bytes."""
    ranks = {bytes([value]): value for value in range(256)}
    encoding = tiktoken.Encoding(
        "cl100k_base", pat_str=r".|\n", mergeable_ranks=ranks, special_tokens={}
    )
    monkeypatch.setitem(tiktoken.registry.ENCODINGS, "cl100k_base", encoding)


@pytest.mark.usefixtures("tokens_of_openai")
def test_langchain_is_told_to_send_text(server: Any) -> None:
    """By default it sends the ids of OpenAI's tokenizer."""
    from langchain_openai import OpenAIEmbeddings

    options: Any = {
        "base_url": f"{server.http_url}/v1",
        "api_key": SecretStr("unused"),
        "model": "default",
    }
    usual = OpenAIEmbeddings(**options)
    told = OpenAIEmbeddings(**options, check_embedding_ctx_length=False)
    with pytest.raises(BadRequestError, match="check_embedding_ctx_length=False"):
        usual.embed_query(TEXTS[0])
    assert len(told.embed_query(TEXTS[0])) == 384
    for embeddings in (usual, told):
        embeddings.client._client.close()
