"""Wrong options of chunks are refused in the same words by every way in."""

from __future__ import annotations

from typing import Any

import grpc
import httpx
import pytest

from service.pb.lln.v1 import embeddings_pb2 as pb

TEXT = "Ships go to sea. " * 40
PLAIN = {"content-type": "text/plain"}


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({"context": "early"}, "late"),
        ({"context": ""}, "late"),
        ({"opening": -0.5}, "0"),
        ({"opening": 10.5}, "10"),
        ({"alone": 1.5}, "1"),
        ({"tokens": 0}, "1"),
        ({"type": "headings", "format": "latex"}, "html"),
    ],
    ids=str,
)
def test_wrong_options_of_chunks_have_the_code_of_grpc(
    http: httpx.Client, embeddings: Any, options: dict[str, Any], limit: str
) -> None:
    """Also in a query string, and in the update and the plan of a document."""
    chunking = {"type": "fixed", **options}
    made = http.post(
        "/v1/documents", json={"text": TEXT, "chunking": {"type": "fixed"}, "record": True}
    )
    living = {"record": made.json()["record"], "text": TEXT, "chunking": chunking}
    query = {name if name != "type" else "chunking": value for name, value in chunking.items()}
    answers = [
        http.post("/v1/documents", json={"text": TEXT, "chunking": chunking}),
        http.post("/v1/documents", params=query, content=TEXT.encode(), headers=PLAIN),
        http.request("PATCH", "/v1/documents", json=living),
    ]
    if "context" in options:
        answers.append(http.post("/v1/plan", json={"text": TEXT, **options}))
    for answer in answers:
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, "invalid_chunking"), error
        assert error["param"].removeprefix("chunking.") in options
        assert limit in str(error["limit"])
    within = pb.Chunking(**grpc_chunking(chunking))
    request = pb.EmbedDocumentRequest(open=pb.DocumentOptions(chunking=within))
    with pytest.raises(grpc.RpcError) as refused:
        list(embeddings.EmbedDocument(iter([request])))
    failure: Any = refused.value
    assert failure.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert dict(failure.trailing_metadata())["lln-error-code"] == "invalid_chunking"


def test_an_option_without_chunks_has_no_limit(http: httpx.Client) -> None:
    body = {"text": TEXT, "chunking": {"context": "late"}}
    error = http.post("/v1/documents", json=body).json()["error"]
    assert error["message"] == "chunking.context does not go with type none"
    assert (error["code"], error["limit"]) == ("unknown_field", None)


def grpc_chunking(chunking: dict[str, Any]) -> dict[str, Any]:
    own = {name: value for name, value in chunking.items() if name in ("tokens", "format")}
    of_all = {name: chunking[name] for name in chunking.keys() - own.keys() - {"type"}}
    kinds = {"fixed": pb.FixedChunks, "headings": pb.HeadingChunks}
    return {**of_all, chunking["type"]: kinds[chunking["type"]](**own)}
