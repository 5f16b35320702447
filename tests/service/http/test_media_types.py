"""What a caller would take, as RFC 9110 has it, and with browsers in mind."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from service.http.media_types import preferred, read_media_type, wants_events

FIREFOX = "text/html,application/xhtml+xml,application/xml;q=0.9,image/png,image/svg+xml,*/*;q=0.8"
CHROME = (
    "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,image/apng,*/*;"
    "q=0.8,application/signed-exchange;v=b3;q=0.7"
)
PICTURE = "image/avif,image/webp,image/png,image/svg+xml,image/*;q=0.8,*/*;q=0.5"
ACCEPTS = [
    ("", "application/json"),
    ("*/*", "application/json"),
    ("application/*", "application/json"),
    (FIREFOX, "application/json"),
    (CHROME, "application/json"),
    (PICTURE, "image/png"),
    ("image/*", "image/png"),
    ("application/json, text/csv;q=0.1", "application/json"),
    ("application/json;q=0.1, text/csv", "text/csv"),
    ("application/json, text/csv", "application/json"),
    ("text/csv, application/json", "text/csv"),
    ("*/*, text/csv", "text/csv"),
    ("text/csv;q=0, */*;q=0.1", "application/json"),
    ("text/csv;q=0", "application/json"),
    ("text/csv;q=much", "application/json"),
    ("text/csv;q=nan", "application/json"),
    ("TEXT/CSV ; Q=0.5", "text/csv"),
    ("xtext/csvx", "application/json"),
    ("application/pdf", "application/json"),
    (",;,;q=", "application/json"),
]


@pytest.fixture(scope="module")
def benchmark(server: Any) -> str:
    """The address of a run that has ended."""
    body = {"lengths": [16], "attentions": ["lln_diag"], "repeats": 1}
    headers = {"accept": "application/x-ndjson"}
    url = f"{server.http_url}/v1/benchmarks"
    run = httpx.post(url, json=body, headers=headers, timeout=120)
    return f"{server.http_url}{run.headers['location']}"


@pytest.mark.parametrize(("accept", "expected"), ACCEPTS)
def test_a_benchmark_comes_as_it_is_accepted(benchmark: str, accept: str, expected: str) -> None:
    if expected == "image/png":
        pytest.importorskip("matplotlib")
    answer = httpx.get(benchmark, headers={"accept": accept}, timeout=60)
    assert read_media_type(answer.headers["content-type"]).name == expected


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("application/x-ndjson", True),
        ("Application/X-NDJSON", True),
        ("application/x-ndjson, application/json", True),
        ("application/x-ndjson, application/json;q=0.9", True),
        ("application/json, application/x-ndjson;q=0.5", False),
        ("application/x-ndjson;q=0, */*", False),
        ("application/x-ndjsonx", False),
        ("*/*", False),
    ],
)
def test_events_come_where_they_are_asked_for(
    http: httpx.Client, accept: str, expected: bool
) -> None:
    assert wants_events(accept) is expected
    kind = "application/x-ndjson" if expected else "application/json"
    headers = {"accept": accept}
    document = http.post("/v1/documents", json={"text": "a text"}, headers=headers)
    assert document.headers["content-type"] == kind
    body = {"lengths": [16], "attentions": ["lln_diag"], "repeats": 1}
    run = http.post("/v1/benchmarks", json=body, headers=headers)
    assert (run.status_code, run.headers["content-type"]) == (202, kind)


def test_openapi_tells_in_which_forms_a_benchmark_comes(http: httpx.Client) -> None:
    path = http.get("/openapi.json").json()["paths"]["/v1/benchmarks"]
    started = path["post"]["responses"]["202"]["content"]
    assert set(started) == {"application/json", "application/x-ndjson"}
    assert "$ref" in started["application/json"]["schema"]


def test_the_most_exact_range_says_how_much_an_offer_is_liked() -> None:
    offers = ["text/plain", "text/csv", "image/png"]
    assert preferred("text/*;q=0.9, text/csv;q=0.2, */*;q=0.5", offers) == "text/plain"
    assert preferred("text/*;q=0, */*", offers) == "image/png"
    assert preferred("application/pdf", offers) is None


def test_parameters_of_a_media_type() -> None:
    found = read_media_type('Text/Plain; Charset="ISO-8859-1" ;x')
    assert found.name == "text/plain"
    assert found.parameters == {"charset": "ISO-8859-1", "x": ""}


@pytest.mark.parametrize("charset", ["utf-8", "UTF-8", '"utf-8"', "us-ascii"])
def test_plain_text_in_utf_8_is_read(http: httpx.Client, charset: str) -> None:
    headers = {"content-type": f"text/plain; charset={charset}"}
    assert http.post("/v1/documents", content=b"a text", headers=headers).status_code == 200


@pytest.mark.parametrize("charset", ["iso-8859-1", "utf-16", "windows-1252", "ebcdic", ""])
@pytest.mark.parametrize("accept", ["*/*", "application/x-ndjson"])
def test_plain_text_in_another_charset_is_refused(
    http: httpx.Client, accept: str, charset: str
) -> None:
    headers = {"content-type": f"text/plain; charset={charset}", "accept": accept}
    answer = http.post("/v1/documents", content="Käse".encode(), headers=headers)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (415, "unsupported_charset")
    assert (error["param"], error["limit"]) == ("content-type", "utf-8")
    assert error["actual"] == charset


@pytest.mark.parametrize(
    ("declared", "hint"),
    [
        ("application/x-www-form-urlencoded", True),
        ("application/xml", False),
    ],
)
def test_who_forgets_the_type_is_told_how_to_send_it(
    http: httpx.Client, declared: str, hint: bool
) -> None:
    answer = http.post("/v1/documents", content='{"text": "a"}', headers={"content-type": declared})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (415, "unsupported_media_type")
    assert error["message"].endswith(
        "(curl's default; add -H 'content-type: application/json')" if hint else declared
    )
    assert error["limit"] == "application/json or text/plain"
    update = http.patch("/v1/documents", content="{}", headers={"content-type": declared})
    assert update.json()["error"]["limit"] == "application/json"
