"""Lists of batches and files, page by page, by OpenAI's client and by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.service.batches.folder import requests
from tests.service.conftest import RunningServer

NUMBER = 5


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.http_url}/v1", api_key="unused", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def batches(client: openai.OpenAI) -> list[Any]:
    """The newest first, as lists have them."""
    made = []
    for _ in range(NUMBER):
        file = client.files.create(file=("in.jsonl", requests(1)), purpose="batch")
        made.append(
            client.batches.create(
                input_file_id=file.id, endpoint="/v1/embeddings", completion_window="24h"
            )
        )
    return made[::-1]


def test_pages_of_batches(client: openai.OpenAI, http: httpx.Client, batches: list[Any]) -> None:
    ids = [batch.id for batch in batches]
    first = http.get("/v1/batches", params={"limit": 2}).json()
    assert [batch["id"] for batch in first["data"]] == ids[:2]
    assert (first["object"], first["has_more"]) == ("list", True)
    assert (first["first_id"], first["last_id"]) == (ids[0], ids[1])
    second = http.get("/v1/batches", params={"limit": 2, "after": ids[1]}).json()
    assert (second["first_id"], second["last_id"]) == (ids[2], ids[3])

    [oldest] = [batch.id for batch in client.batches.list(limit=100)][-1:]
    nothing = http.get("/v1/batches", params={"after": oldest}).json()
    assert nothing == {
        "object": "list",
        "data": [],
        "first_id": None,
        "last_id": None,
        "has_more": False,
    }
    found = [batch.id for batch in client.batches.list(limit=3)]
    assert found[:NUMBER] == ids
    assert found == [batch.id for batch in client.batches.list(limit=100)]
    exact = http.get("/v1/batches", params={"limit": len(found)}).json()
    assert (len(exact["data"]), exact["has_more"]) == (len(found), False)


def test_pages_of_files(client: openai.OpenAI, batches: list[Any]) -> None:
    ids = [batch.input_file_id for batch in batches]
    newest = client.files.list(purpose="batch", limit=2)
    assert [file.id for file in newest.data] == ids[:2]
    assert newest.has_more
    older = client.files.list(purpose="batch", limit=2, after=ids[1])
    assert [file.id for file in older.data] == ids[2:4]
    newer = client.files.list(purpose="batch", order="asc", after=ids[2])
    assert [file.id for file in newer.data][:2] == [ids[1], ids[0]]
    assert {file.purpose for file in client.files.list(purpose="batch", limit=3)} == {"batch"}


@pytest.mark.parametrize(
    ("path", "query", "status", "code", "param", "limit"),
    [
        ("/v1/batches", "limit=0", 422, "invalid_field", "limit", 1),
        ("/v1/batches", "limit=101", 422, "invalid_field", "limit", 100),
        ("/v1/batches", "limit=ten", 422, "invalid_field", "limit", None),
        ("/v1/batches", "after=batch_none", 404, "not_found", "after", None),
        ("/v1/files", "limit=0", 422, "invalid_field", "limit", 1),
        ("/v1/files", "limit=10001", 422, "invalid_field", "limit", 10_000),
        ("/v1/files", "order=newest", 422, "invalid_field", "order", "'asc' or 'desc'"),
        ("/v1/files", "after=file_none", 404, "not_found", "after", None),
        ("/v1/batches/batch_none", "", 404, "batch_not_found", None, None),
    ],
)
def test_what_is_no_page(
    http: httpx.Client, path: str, query: str, status: int, code: str, param: Any, limit: Any
) -> None:
    answer = http.get(f"{path}?{query}")
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (status, code, param)
    assert error["limit"] == limit


def test_a_page_begins_after_something_in_its_list(
    client: openai.OpenAI, batches: list[Any]
) -> None:
    """The file is there, but not among those of that purpose."""
    with pytest.raises(openai.NotFoundError, match="after"):
        client.files.list(purpose="batch_output", after=batches[0].input_file_id)


def test_a_file_without_contents_is_not_found(server: RunningServer, client: openai.OpenAI) -> None:
    file = client.files.create(file=("in.jsonl", requests(1)), purpose="batch")
    (server.log_path.parent / "batches" / "files" / file.id).unlink()
    with pytest.raises(openai.NotFoundError, match="no file"):
        client.files.content(file.id)
    assert client.files.delete(file.id).deleted
