"""The page's button Stop, and a new text: both end every request that is under way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.service.outside import given_up, wait_for
from tests.service.page.browser import (
    fresh_tab,
    go,
    read,
    refusing,
    sample,
    settle,
    shown_text,
    submit,
)

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Request

pytestmark = pytest.mark.long

SHORT = "A short text."
OPENING = sample()[:700]
MAPS = "**/v1/attention/map"


def never(route: Any) -> None:
    """A server that takes longer than anybody waits."""


def test_stop_ends_maps_and_topics_which_can_be_read_later(page: Page) -> None:
    failed = failures(page)
    page.route(MAPS, never)
    submit(page, OPENING)
    page.wait_for_selector("#charts svg")
    page.wait_for_selector("[role=treeitem]")
    page.wait_for_selector("#status-text:has-text('Reading the')")  # a map that takes long says so
    page.click("#stop")
    page.wait_for_selector("#status", state="hidden")
    page.wait_for_selector("figcaption:has-text('stopped before the attention was read')")
    page.wait_for_selector("#topics-hint:has-text('Stopped before the topics were read')")
    await_ends(page, failed, ["/v1/attention/map"] * 2)
    assert page.locator("#error").is_hidden()
    page.unroute(MAPS)
    page.click("figcaption button")
    page.wait_for_selector(".map[aria-label*='layer 0, head 0']")
    page.click("#topics button")
    page.wait_for_selector(
        "#topics-hint:has-text('Each channel'), #topics-hint:has-text('no topics')"
    )
    settle(page)


def test_a_window_that_is_stopped_leaves_the_map_as_it_was(page: Page) -> None:
    read(page, OPENING)
    page.route(MAPS, never)
    with page.expect_request(MAPS):
        page.click("#zoom-in")
    page.wait_for_selector("#stop")
    page.click("#stop")
    page.wait_for_selector("[aria-busy=true]", state="detached")
    assert "stopped" not in page.inner_text(".map-figure figcaption")


def test_a_new_text_ends_the_maps_of_the_one_before(page: Page) -> None:
    failed = failures(page)
    page.route(MAPS, never)
    with page.expect_request(MAPS), page.expect_request("**/v1/structure"):
        submit(page, SHORT)
    page.wait_for_selector("#charts svg")  # the diagnostics have been answered
    page.wait_for_selector("[role=treeitem]")
    page.click("#edit")
    page.wait_for_selector("#status", state="hidden")
    await_ends(page, failed, ["/v1/attention/map"] * 2)
    failed.clear()
    for button in ("#topics button", "figcaption button"):
        with page.expect_request(MAPS):
            page.click(button)
    page.route("**/v1/tokenize", never)
    submit(page, "Another text.")
    page.wait_for_selector("figcaption:has-text('stopped before the attention was read')")
    await_ends(page, failed, ["/v1/attention/map"] * 2)
    assert shown_text(page) == SHORT


def test_stop_ends_a_text_that_is_opened_again(page: Page) -> None:
    read(page, SHORT)
    failed = failures(page)
    page.route(MAPS, refusing(404, "document_not_found", "It is not open."))
    page.route("**/v1/tokenize", never)
    with page.expect_request("**/v1/tokenize"):
        page.click("[data-place='1.1']")
    page.click("#stop")
    page.wait_for_selector("figcaption:has-text('stopped before the attention was read')")
    await_ends(page, failed, ["/v1/tokenize"])  # two questions share one request
    page.unroute("**/v1/tokenize")
    page.unroute(MAPS)
    page.click("figcaption button")
    page.wait_for_selector(".map[aria-label*='layer 1, head 1']")


def test_stop_ends_the_reading_of_a_vector(page: Page) -> None:
    read(page, SHORT)
    page.route("**/v1/documents", never)
    page.click("#vector")
    page.wait_for_selector("#status-text:has-text('Reading the vector')")
    with page.expect_event("requestfailed") as ended:
        page.click("#stop")
    assert path(ended.value) == "/v1/documents"
    page.wait_for_selector("#status", state="hidden")
    assert page.locator("#error").is_hidden()


def test_stop_ends_the_question_of_another_tab(page: Page) -> None:
    for tab, asked, waiting, button, answer in (
        ("#tab-edit", "/v1/documents", "#edit-waiting", "#edit-read", "#edited"),
        ("#tab-similarity", "/v1/embeddings", "#similarity-waiting", "#compare", "#matrix"),
    ):
        page.click(tab)
        page.evaluate("text => document.getElementById('edit-text').value = text", SHORT)
        page.route(f"**{asked}", never)
        page.click(button)
        page.wait_for_selector(f"{answer}[aria-busy]", state="attached")
        with page.expect_event("requestfailed") as ended:
            page.click(f"{waiting} button")
        assert path(ended.value) == asked
        page.wait_for_selector(f"{answer}[aria-busy]", state="detached")
        assert page.locator(waiting).is_hidden()
        assert page.evaluate("document.activeElement.id") == button[1:]
        page.unroute(f"**{asked}")
        page.click(button)
        page.wait_for_selector(answer)
        assert page.locator(waiting).is_hidden()


def test_the_server_gives_up_what_was_stopped(browser: Browser, http: httpx.Client) -> None:
    url = str(http.base_url)
    with fresh_tab(browser, url) as tab:
        go(tab)
        before = given_up(url)
        with tab.expect_request("**/v1/structure"):
            submit(tab, f"{sample()}\n\n" * 12)
        failed = failures(tab)
        tab.click("#stop")
        tab.wait_for_selector("#outline:has-text('Stopped')")
        tab.wait_for_timeout(500)  # others may end besides
        assert {"/v1/structure", "/v1/diagnostics"} <= {path(one) for one in failed}
        wait_for(lambda: given_up(url) == before + len(failed), "the server", seconds=30)


def failures(page: Page) -> list[Request]:
    """The requests that end without an answer, from now on."""
    found: list[Request] = []
    page.on("requestfailed", lambda request: found.append(request))
    return found


def await_ends(page: Page, failed: Sequence[Request], paths: Sequence[str]) -> None:
    """Waits for the browser to tell that these requests have ended, and no others: it does so a
    little after the page shows it."""
    for _ in range(500):
        if len(failed) >= len(paths):
            break
        page.wait_for_timeout(10)
    assert sorted(path(one) for one in failed) == sorted(paths)


def path(request: Request) -> str:
    return "/" + request.url.split("/", 3)[3]
