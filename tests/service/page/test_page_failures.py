"""The page where something fails, is stopped, is replaced or cannot be had."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.service.page.browser import (
    QUEUE_FULL,
    fresh_tab,
    go,
    read,
    refusing,
    settle,
    shown_text,
    submit,
    width_of,
)

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

pytestmark = pytest.mark.long

SHORT = "A short text."
SOFTMAX = "sentence-transformers/all-MiniLM-L6-v2"
LET_GO = refusing(
    404,
    "document_not_found",
    "document 'doc-416e0982541aec33f3cedd119392c3e4' is not open here, or no longer; send its text",
)


def test_errors_are_told_and_can_be_retried(page: Page) -> None:
    page.click("#read")
    page.wait_for_selector("#error:has-text('no text')")
    page.route("**/v1/tokenize", lambda route: route.abort())
    submit(page, SHORT)
    page.wait_for_selector("#error:has-text('cannot be reached')")
    page.unroute("**/v1/tokenize")
    page.fill("#text", "half of another te")
    page.click("#error button")
    settle(page)
    assert page.locator("#error").is_hidden()
    assert shown_text(page) == SHORT, "what failed is tried again, not what is being written"


def test_server_errors_are_shown_in_its_own_words(page: Page) -> None:
    page.route("**/v1/diagnostics", QUEUE_FULL)
    submit(page, SHORT)
    page.wait_for_selector("#error:has-text('The queue is full.')")


def test_an_answer_that_is_none_is_told_as_such(page: Page) -> None:
    page.route("**/v1/tokenize", lambda route: route.fulfill(body="<html>Sign in</html>"))
    submit(page, SHORT)
    page.wait_for_selector("#error:has-text('broke off, or is not an answer of LLN')")


def test_results_stay_whole_while_the_next_text_fails(page: Page) -> None:
    """Of two models the second refuses: neither model's next text is shown."""
    read(page, SHORT)
    page.click("#edit")
    page.select_option("#beside", SOFTMAX)
    page.route("**/v1/tokenize", refuse_second_model)
    submit(page, "Another text, and a longer one.")
    page.wait_for_selector("#error:has-text('The queue is full.')")
    page.click("[data-place='2.2']")
    page.wait_for_selector(".map-figure figcaption:has-text('layer 2, head 2')")
    settle(page)
    assert page.locator(".head").count() == 6 * 12
    page.locator("canvas.map").hover(position={"x": 300, "y": 300})
    assert shown_text(page) == SHORT
    assert "another" not in page.inner_text("#cell").lower()


def refuse_second_model(route: Route) -> None:
    if SOFTMAX in (route.request.post_data or ""):
        QUEUE_FULL(route)
    else:
        route.continue_()


def test_a_stopped_read_leaves_what_was_there(page: Page) -> None:
    read(page, SHORT)
    page.click("#edit")
    page.route("**/v1/tokenize", lambda route: None)  # never answered
    submit(page, "Another text.")
    page.click("#stop")
    page.wait_for_selector("#status", state="hidden")
    page.unroute("**/v1/tokenize")
    page.click("[data-place='2.2']")
    page.wait_for_selector(".map-figure figcaption:has-text('layer 2, head 2')")
    page.select_option("#instrument", "spectral_gap")
    settle(page)
    assert page.locator("#reading").inner_text()
    assert shown_text(page) == SHORT


def test_charts_come_with_what_is_read_after_a_stop(page: Page) -> None:
    held: list[Any] = []
    page.route("**/v1/diagnostics", lambda route: held.append(route))
    with page.expect_request("**/v1/diagnostics"):
        submit(page, SHORT)
    page.click("#stop")
    page.unroute("**/v1/diagnostics")
    for instrument in ("temperature", "entropy"):
        page.select_option("#instrument", instrument)
        page.wait_for_selector(f"#charts figcaption:has-text('{instrument}')")
    settle(page)
    assert page.locator("#charts svg").count() == 2


def test_the_newer_of_two_reads_counts(page: Page) -> None:
    """The older one, which it stops, hides neither its progress nor the button that stops it."""
    held: list[Any] = []
    page.route("**/v1/tokenize", lambda route: held.append(route))
    for text in ("The first text.", "The second text."):
        with page.expect_request("**/v1/tokenize"):
            submit(page, text)
    page.wait_for_timeout(100)
    assert page.locator("#stop").is_visible()
    held[1].continue_()
    settle(page)
    assert shown_text(page) == "The second text."


def test_a_read_is_replaced_while_its_text_is_packed(page: Page) -> None:
    page.evaluate(
        """() => {
          const Usual = CompressionStream;
          globalThis.CompressionStream = class extends Usual {
            constructor(kind) {
              super(kind);
              globalThis.CompressionStream = Usual;
              document.querySelector("#source").requestSubmit();
            }
          };
        }"""
    )
    read(page, SHORT)
    assert page.locator("#error").is_hidden()


def test_topics_are_of_the_head_that_is_named(page: Page) -> None:
    page.click("#sample")
    page.wait_for_selector(".topic")
    page.route("**/v1/attention/map", fail_topics)
    page.click("[data-place='5.5']")
    page.wait_for_selector("#topics-hint:has-text('could not be read')")
    assert page.locator(".topic").count() == 0
    page.unroute("**/v1/attention/map")
    page.click("#error button")
    page.wait_for_selector(".topic")


def test_all_that_failed_is_tried_again(page: Page) -> None:
    """A head has a map and topics: where both failed, one button is for both."""
    page.click("#sample")
    settle(page)
    page.route("**/v1/attention/map", lambda route: route.abort())
    page.click("[data-place='5.5']")
    page.wait_for_selector("#topics-hint:has-text('could not be read')")
    page.wait_for_selector("[aria-busy=true]", state="detached")
    page.unroute("**/v1/attention/map")
    page.click("#error button")
    page.wait_for_selector(".topic")
    page.wait_for_selector(".map[aria-label*='layer 5, head 5']")
    assert page.locator("#error").is_hidden()


def fail_topics(route: Route) -> None:
    if '"topics"' in (route.request.post_data or ""):
        QUEUE_FULL(route)
    else:
        route.continue_()


def test_a_server_that_is_not_ready_is_asked_again(browser: Browser, http: httpx.Client) -> None:
    with fresh_tab(browser, str(http.base_url)) as tab:
        fail_to_load(tab, "/#view=similarity")
        tab.click("#load-error button")
        tab.wait_for_selector("#similarity-model option", state="attached")
        assert tab.locator("#load-error").is_hidden()
        assert tab.locator("#texts textarea").count() == 3
        tab.goto("about:blank")
        fail_to_load(tab, "/")
        read(tab, SHORT)  # which asks again as well
        assert tab.locator("#load-error").is_hidden()


def fail_to_load(page: Page, address: str) -> None:
    page.route("**/v1/models", refusing(503, "not_ready", "The server is starting."))
    page.goto(address)
    page.wait_for_selector("#load-error:has-text('starting')")
    page.unroute("**/v1/models")


def test_site_data_may_be_blocked(browser: Browser, http: httpx.Client) -> None:
    blocked = """
      const refuse = () => { throw new DOMException("blocked", "SecurityError"); };
      Object.defineProperty(window, "localStorage", { get: refuse });
      Object.defineProperty(window, "sessionStorage", { get: refuse });
    """
    with fresh_tab(browser, str(http.base_url), script=blocked) as tab:
        go(tab)
        tab.click("#theme")
        read(tab, SHORT)


def test_errors_fit_a_phone(page: Page) -> None:
    page.set_viewport_size({"width": 320, "height": 740})
    page.select_option("#model", SOFTMAX)
    read(page, SHORT)
    page.route("**/v1/attention/map", LET_GO)  # opened again, and let go again
    page.click("[data-place='1.1']")
    page.wait_for_selector("#error:has-text('send its text')")
    assert width_of(page) <= 320


def test_text_that_is_dragged_is_left_to_the_browser(page: Page) -> None:
    page.fill("#text", "abc")
    prevented = """(make) => {
      const data = new DataTransfer();
      new Function("data", make)(data);
      const drop = new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true });
      document.querySelector("#text").dispatchEvent(drop);
      return drop.defaultPrevented;
    }"""
    assert not page.evaluate(prevented, "data.setData('text/plain', 'words')")
    assert page.evaluate(prevented, "data.items.add(new File(['words'], 'a.txt'))")
    settle(page)
    assert shown_text(page) == "words"


def test_a_file_can_be_opened_again(page: Page, tmp_path: Path) -> None:
    """A browser tells of a choice only if it is not what the field holds already."""
    file = tmp_path / "notes.txt"
    file.write_text(SHORT)
    page.set_input_files("#file", file)
    settle(page)
    assert shown_text(page) == SHORT
    assert page.input_value("#file") == ""
