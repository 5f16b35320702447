"""Documents with records: POST /v1/documents with one, PATCH /v1/documents, and the client."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import grpc
import httpx
import numpy as np
import pytest

from service.client import LLNClient, LLNClientError
from service.pb.lln.v1 import embeddings_pb2 as pb
from service.pb.lln.v1 import models_pb2
from tests.service.stubs import embeddings_stub, models_stub

if TYPE_CHECKING:
    from tests.service.conftest import RunningServer

TEXT = "\n\n".join(
    f"Paragraph {number} speaks of ships and of the sea, of {number * 7} sails and of a harbour "
    f"that lies {number} miles to the north of the lighthouse." * 2
    for number in range(60)
)
CHUNKING = {"type": "fixed", "tokens": 128, "context": "late"}
EVENTS = {"accept": "application/x-ndjson"}


@pytest.fixture(scope="module")
def first(server: RunningServer) -> dict[str, Any]:
    with httpx.Client(base_url=server.http_url, timeout=60) as http:
        return post(http, text=TEXT)


def post(http: httpx.Client, **fields: Any) -> dict[str, Any]:
    answer = http.post("/v1/documents", json={"chunking": CHUNKING, "record": True, **fields})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def patch(http: httpx.Client, **fields: Any) -> dict[str, Any]:
    answer = http.patch("/v1/documents", json=fields)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def error_of(answer: httpx.Response) -> tuple[int, str, str | None]:
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["param"]


def test_a_record_reads_on(http: httpx.Client, first: dict[str, Any]) -> None:
    assert first["segments"] > 1
    update = patch(http, record=first["record"], text=f"{TEXT}\n\nThe ships came home.")
    assert 0 < update["tokens_read"] < update["accounting"]["tokens"]
    kept = [chunk for chunk in update["chunks"] if chunk["previous"] is not None]
    assert kept
    assert all(0 < chunk["staleness"] < 0.05 for chunk in kept)
    before = {chunk["index"]: chunk for chunk in first["chunks"]}
    assert all(chunk["vector"] == before[chunk["previous"]]["vector"] for chunk in kept)
    assert update["record"] != first["record"]


def test_edits_by_characters_are_the_text_after_them(
    http: httpx.Client, first: dict[str, Any]
) -> None:
    edits = [{"start": 9, "end": 11, "text": " one"}, {"start": 0, "end": 0, "text": "A new "}]
    by_edits = patch(http, record=first["record"], text=TEXT, edits=edits)
    after = f"A new {TEXT[:9]} one{TEXT[11:]}"
    by_text = patch(http, record=first["record"], text=after)
    assert by_edits["chunks"] == by_text["chunks"]
    assert by_edits["record"] == by_text["record"]


@pytest.mark.long
def test_exact_is_a_fresh_answer(http: httpx.Client, first: dict[str, Any]) -> None:
    text = f"The sea.\n\n{TEXT}"
    exact = patch(http, record=first["record"], text=text, exact=True)
    fresh = post(http, text=text)
    assert exact["vector"] == fresh["vector"]
    assert exact["record"] == fresh["record"]
    assert exact["staleness"] == 0


def test_events_of_an_update(http: httpx.Client, first: dict[str, Any]) -> None:
    body = {"record": first["record"], "text": f"The sea.\n\n{TEXT}"}
    whole = http.patch("/v1/documents", json=body).json()
    answer = http.patch("/v1/documents", json=body, headers=EVENTS)
    events = [json.loads(line) for line in answer.text.splitlines()]
    assert events[0]["event"] == "progress"
    assert [event["event"] for event in events[-2:]] == ["chunks", "result"]
    assert events[-2]["chunks"] == whole["chunks"]
    assert events[-1]["record"] == whole["record"]


def test_the_client(server: RunningServer) -> None:
    client = LLNClient(server.http_url)
    plain = client.embed_document(TEXT[:500])
    assert plain.record is None
    found = client.embed_document(TEXT, chunking=CHUNKING, record=True)
    assert found.record is not None
    same = client.update_document(found.record, TEXT)
    assert same.details["tokens_read"] == 0
    np.testing.assert_array_equal(same.vector, found.vector)
    with pytest.raises(LLNClientError) as caught:
        client.update_document(found.record[:-7], TEXT)
    assert caught.value.code == "invalid_record"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"record": "no base64!"}, (400, "invalid_record", "record")),
        ({"record": base64.b64encode(b"x" * 99).decode()}, (400, "invalid_record", "record")),
        ({"record": 5}, (422, "invalid_field", "record")),
        ({"max_staleness": 2}, (400, "invalid_staleness", "max_staleness")),
        ({"exact": True, "max_staleness": 0.1}, (400, "invalid_staleness", "max_staleness")),
        ({"edits": [{"start": 5, "end": 3}]}, (400, "invalid_edit", "edits[0]")),
        ({"edits": [{"start": 0, "end": 10**7}]}, (400, "invalid_edit", "edits[0]")),
        (
            {"edits": [{"start": 0, "end": 9}, {"start": 5, "end": 12}]},
            (400, "overlapping_edits", "edits[1]"),
        ),
        ({"text": ""}, (400, "empty_text", "text")),
        ({"edits": [{"start": 0, "end": len(TEXT)}]}, (400, "empty_text", "text")),
        ({"unknown": 1}, (422, "unknown_field", "unknown")),
        ({"chunking": {"type": "none"}}, (400, "invalid_chunking", "chunking.type")),
        ({"truncate": "end"}, (400, "invalid_truncate", "truncate")),
        (
            {"model": "sentence-transformers/all-MiniLM-L6-v2"},
            (400, "record_of_another_model", "record"),
        ),
    ],
)
def test_bad_updates_are_refused(
    http: httpx.Client,
    first: dict[str, Any],
    changes: dict[str, Any],
    expected: tuple[int, str, str],
) -> None:
    body = {"record": first["record"], "text": TEXT, **changes}
    assert error_of(http.patch("/v1/documents", json=body)) == expected


def test_a_model_of_softmax_makes_no_record(http: httpx.Client) -> None:
    body = {"text": TEXT, "record": True, "model": "sentence-transformers/all-MiniLM-L6-v2"}
    assert error_of(http.post("/v1/documents", json=body)) == (400, "no_records", "model")


def test_a_precision_without_a_record_is_refused(http: httpx.Client) -> None:
    body = {"text": TEXT, "record_precision": "float16"}
    expected = (400, "unknown_field", "record_precision")
    assert error_of(http.post("/v1/documents", json=body)) == expected


def test_a_plan_prices_an_update(
    http: httpx.Client, channel: grpc.Channel, first: dict[str, Any]
) -> None:
    added = "\n\nThe ships came home."
    edits = [{"start": len(TEXT), "end": len(TEXT), "text": added}]
    body = {"record": first["record"], "text": TEXT, "edits": edits}
    plan = http.post("/v1/plan", json=body).json()
    update = patch(http, **body)
    assert plan["tokens_read"] == update["tokens_read"] < plan["tokens"]
    assert plan["tokens"] == update["accounting"]["tokens"]
    whole = http.post("/v1/plan", json={"tokens": plan["tokens"]}).json()
    assert 0 < plan["seconds"] < whole["seconds"]
    record = base64.b64decode(first["record"])
    message = models_stub(channel).Plan(models_pb2.PlanRequest(text=TEXT + added, record=record))
    assert message.tokens_read == plan["tokens_read"]
    same = http.post("/v1/plan", json={"record": first["record"], "text": TEXT}).json()
    assert (same["tokens_read"], same["seconds"]) == (0, 0)


def test_a_folded_record_lists_what_was_read(http: httpx.Client, first: dict[str, Any]) -> None:
    folded = post(http, text=TEXT, fold=True)
    assert (folded["vector"], folded["sealed"]) == (first["vector"], 0)
    grown = patch(http, record=folded["record"], text=f"{TEXT}\n\nThe ships came home.")
    assert grown["sealed"] + len(grown["chunks"]) == grown["chunks"][-1]["index"] + 1
    assert 0 < grown["sealed"] < len(first["chunks"])
    assert grown["sealed_staleness"] > 0
    assert len(grown["record"]) <= 1.1 * len(folded["record"])
    without = {"text": TEXT, "fold": True}
    assert error_of(http.post("/v1/documents", json=without)) == (400, "unknown_field", "fold")


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"text": None}, "text"),
        ({"context": "late"}, "context"),
        ({"record": None, "edits": []}, "edits"),
        ({"record": "no base64!"}, "record"),
    ],
)
def test_updates_that_cannot_be_planned(
    http: httpx.Client, first: dict[str, Any], changes: dict[str, Any], param: str
) -> None:
    answer = http.post("/v1/plan", json={"record": first["record"], "text": TEXT, **changes})
    assert (answer.status_code, error_of(answer)[2]) == (400, param)


@pytest.mark.long
def test_kept_chunks_under_another_heading_are_told(
    http: httpx.Client, channel: grpc.Channel
) -> None:
    text = f"# Ships\n\n{TEXT}\n\n## Harbours\n\n{TEXT}"
    headed = {"type": "headings", "context": "late"}
    before = post(http, text=text, chunking=headed)
    after = text.replace("Harbours", "Ports")
    update = patch(http, record=before["record"], text=after)
    assert 0 < update["segments_read"] < update["segments"]
    for chunk in update["chunks"]:
        if chunk["headings"][-1] == "Ports":
            assert chunk["previous"] is None
        elif chunk["previous"] is not None:
            assert chunk["headings"] == before["chunks"][chunk["previous"]]["headings"]
    previous = [chunk["previous"] for chunk in update["chunks"]]
    assert set(update["gone"]) == set(range(len(before["chunks"]))) - set(previous)
    assert any(chunk["previous"] is None and chunk["staleness"] for chunk in update["chunks"])

    request = pb.EmbedDocumentRequest(
        open=pb.DocumentOptions(), text=after.encode(), record=base64.b64decode(before["record"])
    )
    events = list(embeddings_stub(channel).EmbedDocument(iter([request])))
    chunks = [chunk for event in events for chunk in event.chunks.chunks]
    found = [chunk.previous if chunk.HasField("previous") else None for chunk in chunks]
    assert (found, list(events[-1].result.gone)) == (previous, update["gone"])
