"""Vectors as int8, uint8, float16 and bits, over both protocols and in every route of vectors."""

from __future__ import annotations

import base64
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from numpy.typing import NDArray

from service.pb.lln.v1 import embeddings_pb2 as pb
from tests.service.conftest import RunningServer

TEXTS = ["A short text about rivers.", "Another, about the price of tea in spring."]
DTYPES: dict[str, Any] = {
    "float16": np.float16,
    "int8": np.int8,
    "uint8": np.uint8,
    "binary": np.int8,
    "ubinary": np.uint8,
}
FORMATS = {
    "float16": pb.VECTOR_FORMAT_FLOAT16,
    "int8": pb.VECTOR_FORMAT_INT8,
    "uint8": pb.VECTOR_FORMAT_UINT8,
    "binary": pb.VECTOR_FORMAT_BINARY,
    "ubinary": pb.VECTOR_FORMAT_UBINARY,
}


def embed(http: httpx.Client, **fields: Any) -> list[Any]:
    answer = http.post("/v1/embeddings", json={"input": TEXTS, **fields})
    answer.raise_for_status()
    return [item["embedding"] for item in answer.json()["data"]]


def from_base64(texts: list[str], dtype: Any) -> NDArray[Any]:
    return np.stack([np.frombuffer(base64.b64decode(text), dtype) for text in texts])


@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_base64_and_grpc_agree(http: httpx.Client, embeddings: Any, dtype: str) -> None:
    numbers = np.array(embed(http, output_dtype=dtype), DTYPES[dtype])
    packed = embed(http, output_dtype=dtype, encoding_format="base64")
    options = pb.EmbedOptions(format=FORMATS[dtype])
    inputs = [pb.Input(text=text) for text in TEXTS]
    answer = embeddings.Embed(pb.EmbedRequest(input=inputs, options=options))
    over_grpc = [np.frombuffer(one.vector.data, DTYPES[dtype]) for one in answer.embeddings]

    assert (numbers == from_base64(packed, DTYPES[dtype])).all()
    assert (numbers == np.stack(over_grpc)).all()
    assert numbers.shape[1] == (48 if "binary" in dtype else 384)


def test_codes_stand_for_the_vectors(http: httpx.Client) -> None:
    vectors = np.array(embed(http))
    model = http.get("/v1/models/default").json()
    codes = np.array(embed(http, output_dtype="int8"))
    bits = np.unpackbits(np.array(embed(http, output_dtype="ubinary"), np.uint8), axis=1)

    assert codes * model["int8_range"] / 127 == pytest.approx(vectors, abs=0.51 / 127)
    assert (bits == (vectors > 0)).all()


def test_fewer_dimensions(http: httpx.Client) -> None:
    vectors = np.array(embed(http, dimensions=96))
    model = http.get("/v1/models/default").json()
    codes = np.array(embed(http, dimensions=96, output_dtype="int8"))
    assert codes * 2 * model["int8_range"] / 127 == pytest.approx(vectors, abs=0.005)


def test_documents_and_their_chunks(http: httpx.Client) -> None:
    body = {"text": " ".join(TEXTS), "chunking": {"type": "sentences"}}
    whole = http.post("/v1/documents", json=body).json()
    codes = http.post("/v1/documents", json={**body, "output_dtype": "ubinary"}).json()

    for exact, packed in zip([whole, *whole["chunks"]], [codes, *codes["chunks"]], strict=True):
        bits = np.unpackbits(np.array(packed["vector"], np.uint8))
        assert (bits == (np.array(exact["vector"]) > 0)).all()


def test_tei_route(http: httpx.Client) -> None:
    answer = http.post("/embed", json={"inputs": TEXTS, "output_dtype": "int8"})
    assert answer.json() == embed(http, output_dtype="int8")


def test_openai_client_passes_it_on(server: RunningServer) -> None:
    with openai.OpenAI(base_url=f"{server.http_url}/v1", api_key="unused") as client:
        answer = client.embeddings.create(
            model="default",
            input=TEXTS,
            encoding_format="float",
            extra_body={"output_dtype": "binary"},
        )
    assert len(answer.data[0].embedding) == 48


@pytest.mark.parametrize(
    ("fields", "status", "code", "param"),
    [
        ({"output_dtype": "int4"}, 422, "invalid_field", "output_dtype"),
        (
            {"output_dtype": "int8", "normalize": False},
            400,
            "dtype_needs_normalized",
            "normalize",
        ),
        (
            {"output_dtype": "binary", "dimensions": 100},
            400,
            "dtype_needs_whole_bytes",
            "dimensions",
        ),
    ],
)
def test_refusals(
    http: httpx.Client, fields: dict[str, Any], status: int, code: str, param: str
) -> None:
    answer = http.post("/v1/embeddings", json={"input": "x", **fields})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (status, code, param)
