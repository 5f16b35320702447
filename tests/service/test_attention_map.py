"""Maps and structure over both protocols: the same numbers, and the same refusals."""

from __future__ import annotations

import asyncio
import base64
import struct
import zlib
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import grpc
import httpx
import numpy as np
import orjson
import pytest

from service.http.json_response import (
    EncodingFormat,
    dump_floats,
    encode_vector,
    json_response,
    whole_body,
)
from service.http.schemas.responses.attention import AttentionMapAnswer, StructureAnswer
from service.pb.lln.v1 import diagnostics_pb2 as pb
from service.pb.lln.v1 import diagnostics_pb2_grpc

TEXT = "\n\n".join(["The ship left the harbour at dawn, and nobody on the pier waved."] * 40)
MAP = "/v1/attention/map"


def ask(http: httpx.Client, path: str = MAP, **fields: Any) -> dict[str, Any]:
    response = http.post(path, json=fields)
    assert response.status_code == 200, response.text
    document: dict[str, Any] = response.json()
    return document


@pytest.fixture(scope="module")
def diagnostics(server: Any) -> Iterator[Any]:
    with grpc.insecure_channel(server.grpc_address) as channel:
        yield diagnostics_pb2_grpc.DiagnosticsStub(channel)  # type: ignore[no-untyped-call]


def test_answer_is_as_documented(http: httpx.Client) -> None:
    body = {"text": TEXT, "layer": 1, "head": 2, "links": 3, "topics": 2}
    response = http.post(MAP, json=body)
    AttentionMapAnswer.model_validate_json(response.content, strict=True)
    assert "compute;dur=" in response.headers["server-timing"]
    structure = http.post("/v1/structure", json={"text": TEXT})
    StructureAnswer.model_validate_json(structure.content, strict=True)


def test_statistics_agree(http: httpx.Client) -> None:
    found = {
        name: ask(http, text=TEXT, layer=4, head=1, height=9, width=11, statistic=name)
        for name in ("mass", "mean", "sum")
    }
    values = {name: np.array(one["values"]) for name, one in found.items()}
    heights = np.diff(found["mass"]["row_edges"])[:, None]
    widths = np.diff(found["mass"]["column_edges"])
    np.testing.assert_allclose(values["mass"].sum(1), 1, rtol=1e-5)
    np.testing.assert_allclose(values["sum"], values["mass"] * heights, rtol=1e-5)
    np.testing.assert_allclose(values["mean"] * widths, values["mass"], rtol=1e-5)


def test_document_stands_for_its_text(http: httpx.Client) -> None:
    opened = ask(http, "/v1/tokenize", text=TEXT, open=True)
    handle = opened["document"]
    fields: dict[str, Any] = {"layer": 2, "head": 0, "rows": {"start": 5, "end": 60}}
    by_handle, by_text = ask(http, document=handle, **fields), ask(http, text=TEXT, **fields)
    assert by_handle == by_text
    assert by_handle["tokens"] == opened["count"]
    assert ask(http, "/v1/structure", document=handle)["document"] == handle
    some: dict[str, Any] = {"layers": [3], "instruments": ["entropy", "temperature", "energy"]}
    found = ask(http, "/v1/diagnostics", document=handle, **some)
    whole = ask(http, "/v1/diagnostics", text=TEXT, **some)
    for name, reading in whole["instruments"].items():
        again = found["instruments"][name]["values"][0]
        assert again == pytest.approx(reading["values"][0], rel=1e-3), name


def test_texts_are_not_kept_open_unasked(http: httpx.Client) -> None:
    assert ask(http, "/v1/tokenize", text="A text of its own.")["document"] is None


def test_base64_is_the_same_numbers(http: httpx.Client) -> None:
    fields: dict[str, Any] = {"text": TEXT, "layer": 0, "head": 3, "height": 5, "width": 7}
    packed = ask(http, **fields, encoding_format="base64")["values"]
    numbers = np.frombuffer(base64.b64decode(packed), "<f4").reshape(5, 7)
    np.testing.assert_allclose(numbers, ask(http, **fields)["values"], rtol=1e-6)


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_large_maps_are_written_in_turns(
    encoding: EncodingFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.fairness._YIELD_EVERY_S", 0.0)
    values = np.random.default_rng(0).random((300, 701), dtype=np.float32)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def written() -> bytes:
        beside = asyncio.create_task(others())
        found = await dump_floats(values, encoding)
        beside.cancel()
        return whole_body(json_response(found))

    text = asyncio.run(written())
    assert text == orjson.dumps(encode_vector(values, encoding), option=orjson.OPT_SERIALIZE_NUMPY)
    assert turns > 2


def test_grpc_gives_the_same_map(http: httpx.Client, diagnostics: Any) -> None:
    found = ask(http, text=TEXT, layer=5, head=9, height=6, width=8, links=4, topics=2)
    request = pb.AttentionMapRequest(
        text=TEXT, layer=5, head=9, height=6, width=8, links=4, topics=2
    )
    message = diagnostics.AttentionMap(request)
    assert message.document == found["document"]
    assert list(message.row_edges) == found["row_edges"]
    np.testing.assert_allclose(np.reshape(message.mass, (6, 8)), found["values"], rtol=1e-5)
    assert [(link.query, link.key) for link in message.links] == [
        (link["query"], link["key"]) for link in found["links"]
    ]
    for topic, expected in zip(message.topics, found["topics"], strict=True):
        assert topic.channel == expected["channel"]
        for token, item in zip(topic.tokens, expected["tokens"], strict=True):
            assert token.token == item["token"]
            has_characters = token.HasField("characters")
            assert has_characters == (item["characters"] is not None)
            if has_characters:
                assert token.characters.end == item["characters"]["end"]
    again = pb.AttentionMapRequest(document=message.document, layer=5, head=9, height=6, width=8)
    assert diagnostics.AttentionMap(again).mass == message.mass


def test_grpc_gives_the_same_diagnosis(http: httpx.Client, diagnostics: Any) -> None:
    fields: dict[str, Any] = {
        "layers": [0],
        "heads": [2],
        "instruments": ["head_kind", "entropy"],
    }
    sample: dict[str, Any] = {
        "mode": "sampled",
        "seed": 7,
        "sampled_rows": 40,
        "quantiles": [0.25, 0.75],
    }
    asked: dict[str, Any] = {"text": TEXT, **fields, **sample}
    document = http.post("/v1/diagnostics", json=asked).json()
    found = diagnostics.Diagnose(pb.DiagnoseRequest(**asked))
    assert {name: getattr(found, name) for name in ("mode", "seed", "sampled_rows")} == {
        name: document[name] for name in ("mode", "seed", "sampled_rows")
    }
    assert list(found.quantiles) == document["quantiles"] == [0.25, 0.75]
    assert list(found.notes) == document["notes"]
    assert found.rows_read == document["rows_read"] == 40
    kind, entropy = found.instruments
    assert list(kind.layers[0].labels) == document["instruments"]["head_kind"]["labels"][0]
    [spread] = [one for one in entropy.beside if one.name == "quantiles"]
    expected = document["instruments"]["entropy"]["beside"]["quantiles"]["values"][0][0]
    assert list(spread.layers[0].values) == expected
    with pytest.raises(grpc.RpcError, match="seed must be from 0 to"):
        diagnostics.Diagnose(pb.DiagnoseRequest(text=TEXT, seed=-1))


def test_png(http: httpx.Client) -> None:
    body = {"text": TEXT, "layer": 3, "head": 3, "height": 40, "width": 64, "format": "png"}
    response = http.post(MAP, json=body)
    assert response.headers["content-type"] == "image/png"
    assert response.headers["x-lln-document"].startswith("doc-")
    width, height, shades = decoded(response.content)
    assert (width, height) == (64, 40)
    diagonal = shades[np.arange(40), np.arange(40) * 64 // 40].mean()
    assert diagonal > shades.mean(), "a head looks at its own neighbourhood more than elsewhere"


def decoded(png: bytes) -> tuple[int, int, np.ndarray[Any, Any]]:
    """A palette image without filters, as the server writes it; checksums are checked."""
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    chunks, at = {}, 8
    while at < len(png):
        size, kind = struct.unpack(">I4s", png[at : at + 8])
        chunks[kind] = png[at + 8 : at + 8 + size]
        (checksum,) = struct.unpack(">I", png[at + 8 + size : at + 12 + size])
        assert checksum == zlib.crc32(kind + chunks[kind])
        at += 12 + size
    width, height = struct.unpack(">II", chunks[b"IHDR"][:8])
    lines = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, width + 1)
    assert not lines[:, 0].any()
    assert len(chunks[b"PLTE"]) == 768
    return width, height, lines[:, 1:]


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"layer": 6}, 400, "invalid_layer"),
        ({"head": -1}, 400, "invalid_head"),
        ({"rows": {"start": 0, "end": 10**6}}, 400, "invalid_window"),
        ({"columns": {"start": 9, "end": 9}}, 400, "invalid_window"),
        ({"height": 0, "format": "png"}, 400, "invalid_height"),
        ({"width": 100_000, "format": "png"}, 400, "invalid_width"),
        ({"links": 1_001}, 400, "invalid_links"),
        ({"document": "doc-0"}, 400, "invalid_document"),
        ({"text": None}, 400, "invalid_document"),
        ({"text": None, "document": "doc-0"}, 404, "document_not_found"),
        ({"text": ""}, 400, "empty_text"),
        ({"model": "nope"}, 404, "model_not_found"),
        ({"layer": None}, 422, "invalid_field"),
        ({"format": "jpeg"}, 422, "invalid_field"),
        ({"rows": {"start": 0}}, 422, "missing_field"),
        ({"zoom": 3}, 422, "unknown_field"),
    ],
)
def test_refusals(http: httpx.Client, fields: dict[str, Any], status: int, code: str) -> None:
    response = http.post(MAP, json={"text": TEXT, "layer": 0, "head": 0, **fields})
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)


def test_grpc_refuses_in_the_same_words(http: httpx.Client, diagnostics: Any) -> None:
    body = {"text": TEXT, "layer": 99, "head": 0}
    refused = http.post(MAP, json=body).json()["error"]
    with pytest.raises(grpc.RpcError) as raised:
        diagnostics.AttentionMap(pb.AttentionMapRequest(text=TEXT, layer=99))
    error: Any = raised.value
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error.details() == refused["message"]
    metadata = {key: unquote(value) for key, value in error.trailing_metadata()}
    assert metadata["lln-error-code"] == refused["code"]
    assert metadata["lln-error-limit"] == str(refused["limit"])


def test_softmax_beyond_its_budget_is_refused_with_the_price(start_server: Any) -> None:
    server = start_server(LLN_ENGINE__MAX_MAP_SCORES="10000")
    body = {"text": TEXT, "layer": 0, "head": 0}
    published = "sentence-transformers/all-MiniLM-L6-v2"
    with httpx.Client(base_url=server.http_url, timeout=60) as http:
        refused = http.post(MAP, json={**body, "model": published}).json()["error"]
        assert refused["code"] == "map_too_large"
        assert (refused["limit"], refused["actual"]) == (10_000, 602**2)
        assert http.post(MAP, json=body).status_code == 200
