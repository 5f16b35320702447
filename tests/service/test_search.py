"""/v1/search and the page's Search tab, over an index that the server was started with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from service.http.schemas.responses.search import IndexAnswer, IndexedDocument, SearchAnswer
from tests.service.outside import wait_for
from tests.service.page.browser import fresh_tab, go
from tests.service.processes import lln

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

FILES = {
    "harbour/fog.md": "# Fog\n\nPilots bring ships safely into port.\n\n## Signals 🌫\n\n"
    "In fog, a horn sounds every minute 🚢 and the lighthouse sends a coded flash.\n",
    "kitchen/cake.txt": "The recipe wants two eggs, a little flour and a hot pan.\n",
    "notes.html": "<title>Notes</title><p>Backups are rotated every night at two.</p>",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("notes")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    # In a process of its own: a browser that is open runs an event loop on this thread.
    assert lln("index", str(folder)).returncode == 0
    return folder


@pytest.fixture(scope="module")
def url(folder: Path, launch_server: Any) -> str:
    running = launch_server(LLN_MODELS="default", LLN_INDEX=str(folder))
    return str(running.http_url)


@pytest.fixture
def ask(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=60) as client:
        yield client


def test_finds_passages(ask: httpx.Client) -> None:
    answer = ask.post("/v1/search", json={"query": "how do I bake", "limit": 2})
    assert answer.status_code == 200
    SearchAnswer.model_validate(answer.json())
    first, second = answer.json()["data"]
    assert first["file"] == "kitchen/cake.txt"
    assert first["vectors_rank"] == 1
    assert first["similarity"] > second["similarity"]
    document = ask.get("/v1/search/document", params={"file": first["file"]}).json()
    IndexedDocument.model_validate(document)
    characters = first["characters"]
    assert document["text"][characters["start"] : characters["end"]] == first["text"]
    assert document["text"] == FILES["kitchen/cake.txt"]


def test_says_what_is_indexed(ask: httpx.Client, folder: Path, http: httpx.Client) -> None:
    answer = IndexAnswer.model_validate(ask.get("/v1/search").json())
    assert answer.index is not None
    assert (answer.index.folder, answer.index.files) == (folder.name, 3)
    assert http.get("/v1/search").json() == {"object": "index", "index": None}
    refused = http.post("/v1/search", json={"query": "fog"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (501, "no_index")


def test_searches_by_words_alone(ask: httpx.Client) -> None:
    answer = ask.post("/v1/search", json={"query": "rotated backup", "by": "words"}).json()
    assert [hit["file"] for hit in answer["data"]] == ["notes.html"]
    assert answer["usage"]["total_tokens"] == 0
    many = " ".join(f"word{number}" for number in range(800)) + " rotated"
    found = ask.post("/v1/search", json={"query": many, "by": "words"}).json()["data"]
    assert [hit["file"] for hit in found] == ["notes.html"]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"query": ""}, 400, "empty_input"),
        ({"query": "x" * 8_193}, 400, "query_too_long"),
        ({"query": "fog", "limit": 101}, 400, "invalid_input"),
        ({"query": "fog", "limit": 0}, 400, "invalid_input"),
        ({"query": "fog", "by": "luck"}, 422, "invalid_field"),
        ({}, 422, "missing_field"),
    ],
)
def test_what_is_refused(ask: httpx.Client, body: Any, status: int, code: str) -> None:
    answer = ask.post("/v1/search", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


def test_a_file_that_is_not_there(ask: httpx.Client) -> None:
    answer = ask.get("/v1/search/document", params={"file": "../secret"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


def test_follows_the_index(ask: httpx.Client, folder: Path) -> None:
    """Files that change while the server runs, and an index that is made anew."""
    new = folder / "new.txt"
    new.write_text("Zebras graze on the plain.")
    assert lln("index", str(folder)).returncode == 0
    query = {"query": "zebra", "limit": 1}
    assert ask.post("/v1/search", json=query).json()["data"][0]["file"] == "new.txt"
    new.unlink()
    assert lln("index", str(folder), "--rebuild").returncode == 0
    assert ask.post("/v1/search", json=query).json()["data"][0]["file"] != "new.txt"


def test_a_server_without_its_index_does_not_start(tmp_path: Path) -> None:
    ports = {"LLN_HTTP_PORT": "0", "LLN_GRPC_PORT": "0", "LLN_MODELS": "default"}
    found = lln("serve", **ports, LLN_INDEX=str(tmp_path))
    assert found.returncode == 1
    assert f"{tmp_path} has no index" in found.stderr.splitlines()[-1]
    assert "Traceback" not in found.stderr


@pytest.mark.long
def test_the_page_shows_a_passage_in_its_document(browser: Browser, url: str) -> None:
    with fresh_tab(browser, url) as tab:
        go(tab)
        tab.click("#tab-search")
        tab.wait_for_selector("#query:enabled")
        tab.fill("#query", "horn in fog")
        tab.press("#query", "Enter")
        tab.wait_for_selector(".hit[aria-pressed=true]")
        first = tab.locator(".hit").first
        assert first.locator(".hit-file").text_content() == "harbour/fog.md"
        assert "horn" in first.locator("mark").all_text_contents()
        # The page forbids what `wait_for_function` does.
        wait_for(lambda: tab.evaluate("CSS.highlights.has('passage')"), "the passage's mark")
        passage = "".join(texts_of(tab, "passage"))
        assert passage == (tab.locator(".hit").first.locator(".hit-text").text_content() or "")
        assert "🚢" in passage
        assert "fog" in [word.lower() for word in texts_of(tab, "word")]
        tab.locator(".hit", has_text="cake.txt").click()
        tab.wait_for_selector("#found-title:has-text('cake')")
        assert tab.locator("#found-text").text_content() == FILES["kitchen/cake.txt"]


@pytest.mark.long
def test_a_passage_is_chosen_while_its_document_is_being_shown(
    browser: Browser, http: httpx.Client
) -> None:
    """The second passage lies at the end of a document that takes a moment to show."""
    text = "word " * 200_000 + "swordfish"
    ends = [(0, 9), (len(text) - 9, len(text))]
    hits = [hit_at(start, text[start:end]) for start, end in ends]
    click_second = """() => new MutationObserver(() => {
      const second = document.querySelectorAll(".hit")[1];
      const isShowing = document.querySelector("#found-text").childElementCount;
      if (second?.ariaPressed === "false" && isShowing) second.click();
    }).observe(document.querySelector("#found"), { childList: true, subtree: true })"""
    with fresh_tab(browser, str(http.base_url)) as tab:
        find_in(tab, text, hits)
        go(tab, "/#view=search")
        tab.wait_for_selector("#query:enabled")
        tab.evaluate(click_second)
        tab.fill("#query", "swordfish")
        tab.press("#query", "Enter")
        wait_for(lambda: tab.evaluate("CSS.highlights.has('passage')"), "the passage's mark")
        wait_for(lambda: texts_of(tab, "passage") == ["swordfish"], "the second passage's mark")
        assert tab.locator("#search-error").is_hidden()


def test_a_passage_that_is_found_while_another_tab_is_open_is_scrolled_to(
    browser: Browser, http: httpx.Client
) -> None:
    text = "word\n" * 5_000 + "swordfish"
    with fresh_tab(browser, str(http.base_url)) as tab:
        find_in(tab, text, [hit_at(len(text) - 9, "swordfish")])
        go(tab, "/#view=search")
        tab.wait_for_selector("#query:enabled")
        tab.fill("#query", "swordfish")
        tab.evaluate(
            """() => {
              document.querySelector("#search").click();
              document.querySelector("#tab-edit").click();
            }"""
        )
        tab.wait_for_selector(".hit", state="attached")
        tab.click("#tab-search")
        wait_for(lambda: tab.evaluate("CSS.highlights.has('passage')"), "the passage's mark")
        assert tab.evaluate("document.querySelector('#found-text').scrollTop") > 0


def find_in(tab: Page, text: str, hits: list[dict[str, Any]]) -> None:
    """A server that finds these passages, all of one document."""
    found = {"object": "list", "data": hits, "usage": {"prompt_tokens": 1, "total_tokens": 1}}
    described = {"folder": "notes", "files": 1, "passages": len(hits), "tokens": 9}
    tab.route(
        "**/v1/search",
        lambda route: route.fulfill(
            json=found if route.request.method == "POST" else {"index": described}
        ),
    )
    tab.route(
        "**/v1/search/document*",
        lambda route: route.fulfill(json={"file": "a.txt", "title": None, "text": text}),
    )


def hit_at(start: int, text: str) -> dict[str, Any]:
    return {
        "file": "a.txt",
        "title": None,
        "headings": [],
        "page": None,
        "text": text,
        "characters": {"start": start, "end": start + len(text)},
        "score": 1.0,
        "words_rank": 1,
        "vectors_rank": None,
        "similarity": None,
    }


def texts_of(tab: Page, name: str) -> list[str]:
    """What a highlight of the text covers."""
    found: list[str] = tab.evaluate(f"[...CSS.highlights.get('{name}')].map(String)")
    return found


@pytest.mark.long
def test_the_page_of_a_server_without_an_index(browser: Browser, http: httpx.Client) -> None:
    with fresh_tab(browser, str(http.base_url)) as tab:
        go(tab, "/#view=search")
        tab.wait_for_selector("#search-hint:not(:empty)")
        assert "LLN_INDEX=FOLDER" in (tab.locator("#search-hint").text_content() or "")
        assert tab.locator("#query").is_disabled()
