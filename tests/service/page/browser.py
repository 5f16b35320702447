"""A real browser on the page, and what its tests do there again and again."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.service.kept import Kept

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page, Route

PAGE = Path(__file__).resolve().parents[3] / "service" / "page"
_TESTS_OF_THE_PAGE = re.compile(r"tests/service/page/test_page\w*\.py")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FAR_HOST = "page.test"  # over plain HTTP a browser trusts a page of this machine alone
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    f"--host-resolver-rules=MAP {FAR_HOST} 127.0.0.1",
)
TIMEOUT_MS = 60_000


def is_of_the_page(nodeid: str) -> bool:
    """Tells it by the file of a test."""
    return _TESTS_OF_THE_PAGE.fullmatch(nodeid.partition("::")[0]) is not None


@contextmanager
def on_all_cores() -> Iterator[None]:
    """For what is started meanwhile. A worker's own cores (tests/conftest.py) are for its server;
    what the page takes is measured."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    try:
        yield
    finally:
        os.sched_setaffinity(0, own)


@contextmanager
def chromium() -> Iterator[Browser]:
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip(f"none of {', '.join(BROWSERS)} is installed")
    with on_all_cores():
        playwright = driver.sync_playwright().start()
    try:
        running = playwright.chromium.launch(executable_path=program, args=list(FLAGS))
        yield running
        running.close()
    finally:
        playwright.stop()


SHARED_BROWSER = Kept(chromium)
"""For the tests of the page that follow each other: starting it takes a second."""


class Answers:
    """The server's own answers to what many tests ask it: it computes each only once."""

    _SLOW = re.compile(r"/v1/(diagnostics|attention/map|structure)$")

    def __init__(self) -> None:
        self._known: dict[tuple[str, bytes | None], dict[str, Any]] = {}

    def serve(self, context: BrowserContext) -> None:
        context.route(self._SLOW, self._answer)

    def _answer(self, route: Route) -> None:
        request = route.request
        asked = (request.url, request.post_data_buffer)
        found = self._known.get(asked)
        if found is None:
            got = route.fetch(timeout=TIMEOUT_MS)
            found = {"status": got.status, "headers": got.headers, "body": got.body()}
            if got.ok:
                self._known[asked] = found
        route.fulfill(**found)


@contextmanager
def fresh_tab(
    browser: Browser, url: str, *, script: str | None = None, answers: Answers | None = None
) -> Iterator[Page]:
    """A tab of its own, in which nothing may go wrong unnoticed; `script` runs first."""
    problems: list[str] = []
    requested: list[str] = []
    with browser.new_context(base_url=url, viewport={"width": 1400, "height": 1000}) as context:
        context.set_default_timeout(TIMEOUT_MS)
        if script is not None:
            context.add_init_script(script)
        if answers is not None:
            answers.serve(context)
        tab = context.new_page()
        tab.on("pageerror", lambda error: problems.append(str(error)))
        tab.on("request", lambda request: requested.append(request.url))
        yield tab
        # A request that is still open would make its handler fail in the next tab.
        context.unroute_all(behavior="ignoreErrors")
    assert problems == []
    assert [address for address in requested if not address.startswith(url)] == []


def go(page: Page, address: str = "/") -> None:
    page.goto(address)
    page.wait_for_selector("#model option", state="attached")


def read(page: Page, text: str) -> None:
    submit(page, text)
    settle(page)


def submit(page: Page, text: str) -> None:
    page.fill("#text", text)
    page.click("#read")


def settle(page: Page) -> None:
    """Until everything asked for is there."""
    page.wait_for_selector("#charts svg")
    page.wait_for_selector(".head.unread", state="detached")
    page.wait_for_selector("#status", state="hidden")
    page.wait_for_selector("[aria-busy=true]", state="detached")


def paste(page: Page, text: str) -> None:
    """As from the clipboard, which takes long texts that typing would not."""
    page.evaluate(
        """(text) => {
          const data = new DataTransfer();
          data.setData("text", text);
          const paste = { clipboardData: data, cancelable: true };
          document.querySelector("#text").dispatchEvent(new ClipboardEvent("paste", paste));
        }""",
        text,
    )


def shown_text(page: Page) -> str:
    text: str = page.evaluate("document.querySelector('#reader').textContent")
    return text


def window_of(page: Page, index: int = 0) -> list[int]:
    value = page.locator(".map-figure").nth(index).get_attribute("data-window")
    assert value is not None, "the map has been drawn"
    return [int(number) for number in value.split()]


def marked(page: Page, name: str) -> int:
    found: int = page.evaluate(f"CSS.highlights.get('{name}')?.size ?? 0")
    return found


def width_of(page: Page) -> int:
    width: int = page.evaluate("document.documentElement.scrollWidth")
    return width


def sample() -> str:
    found = re.search(r"`(.+?)`", (PAGE / "sample.js").read_text(), re.DOTALL)
    assert found is not None, "the sample is a template string"
    return found[1]


def refusing(status: int, code: str, message: str) -> Callable[[Route], None]:
    """A server that answers with this error."""
    body = json.dumps({"error": {"message": message, "code": code}})

    def refuse(route: Any) -> None:
        route.fulfill(status=status, content_type="application/json", body=body)

    return refuse


QUEUE_FULL = refusing(429, "queue_full", "The queue is full.")
