"""The context of chunks for which a request says none, as a server of `documents` answers."""

from __future__ import annotations

from typing import Any

import grpc
import httpx
import numpy as np
import pytest

from service.pb.lln.v1 import embeddings_pb2, models_pb2
from tests.service.stubs import embeddings_stub, models_stub

TEXT = "# Otters\n\n" + " ".join(f"Sentence {number} is about rivers." for number in range(40))
FIXED = {"type": "fixed", "tokens": 32}


@pytest.fixture(scope="module")
def server(launch_server: Any) -> Any:
    return launch_server(LLN_MODELS="documents")


def chunks(server: Any, **options: Any) -> list[list[float]]:
    body = {"text": TEXT, "chunking": FIXED | options}
    answer = httpx.post(f"{server.http_url}/v1/documents", json=body, timeout=60).json()
    return [chunk["vector"] for chunk in answer["chunks"]]


def test_it_is_named_over_both_protocols(server: Any) -> None:
    (model,) = httpx.get(f"{server.http_url}/v1/models").json()["data"]
    assert model["chunk_context"] == "one_pass"
    with grpc.insecure_channel(server.grpc_address) as channel:
        asked = models_pb2.GetModelRequest(model="documents")
        assert models_stub(channel).Get(asked).chunk_context == "one_pass"


def test_chunks_are_read_in_it_over_both_protocols(server: Any) -> None:
    own = chunks(server)
    assert own == chunks(server, context="one_pass")
    assert own != chunks(server, context="balanced")
    plan = embeddings_pb2.Chunking(fixed=embeddings_pb2.FixedChunks(tokens=32))
    opening = embeddings_pb2.EmbedDocumentRequest(
        open=embeddings_pb2.DocumentOptions(chunking=plan), text=TEXT.encode()
    )
    with grpc.insecure_channel(server.grpc_address) as channel:
        events = list(embeddings_stub(channel).EmbedDocument(iter([opening])))
    found = [chunk.vector.data for event in events for chunk in event.chunks.chunks]
    assert len(found) == len(own)
    assert events[-1].result.accounting.tokens_alone == 0, "nothing is read twice"


def test_chunks_of_voyages_clients_too(server: Any) -> None:
    body = {"inputs": [["Otters swim.", "They eat fish."]], "model": "documents"}
    url = f"{server.http_url}/v1/contextualizedembeddings"
    given = httpx.post(url, json=body, timeout=60).raise_for_status().json()
    vectors = [item["embedding"] for item in given["data"][0]["data"]]
    text = "".join(body["inputs"][0])
    spans = [{"start": 0, "end": 12}, {"start": 12, "end": len(text)}]

    def alike(context: str) -> bool:
        chunking = {"type": "spans", "spans": spans, "context": context}
        asked = {"text": text, "chunking": chunking}
        answer = httpx.post(f"{server.http_url}/v1/documents", json=asked, timeout=60).json()
        return bool(np.allclose(vectors, [one["vector"] for one in answer["chunks"]], atol=2e-3))

    assert [alike("one_pass"), alike("balanced")] == [True, False]
