"""Which element has the focus after something closes, and what screen readers announce."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.service.page.browser import QUEUE_FULL, fresh_tab, go, read, settle, submit

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SHORT = "A short text."
NO_CLIPBOARD = "Object.defineProperty(navigator, 'clipboard', { value: undefined })"


def focused(page: Page) -> str:
    found: str = page.evaluate("document.activeElement.id")
    return found


def test_escape_closes_the_form_that_a_button_opened(page: Page) -> None:
    page.keyboard.press("Escape")
    assert page.locator("#source").is_visible(), "before a text is read, the form is all there is"
    read(page, SHORT)
    page.click("#edit")
    assert focused(page) == "text"
    page.keyboard.type("Other words.")
    page.keyboard.press("Escape")
    assert page.locator("#source").is_hidden()
    assert focused(page) == "edit"
    page.keyboard.press("Enter")
    assert "Other words." in page.input_value("#text")


@pytest.mark.parametrize("key", ["Escape", "Control+C"])
def test_the_button_has_the_focus_again_after_copying(
    browser: Browser, http: httpx.Client, key: str
) -> None:
    with fresh_tab(browser, str(http.base_url), script=NO_CLIPBOARD) as tab:
        go(tab)
        read(tab, SHORT)
        tab.click("#share")
        assert focused(tab) == "copy-text"
        tab.keyboard.press(key)
        tab.wait_for_selector("#copy", state="hidden")
        assert focused(tab) == "share"


def test_the_keyboard_goes_on_where_a_button_was(page: Page) -> None:
    held: list[Any] = []
    page.route("**/v1/tokenize", lambda route: held.append(route))
    submit(page, SHORT)
    page.click("#stop")
    assert focused(page) == "read"
    page.unroute("**/v1/tokenize")
    page.route("**/v1/tokenize", QUEUE_FULL)
    page.click("#read")
    page.click("#error button")
    assert focused(page) == "main"
    page.unroute("**/v1/tokenize")
    page.wait_for_selector("#error button")
    read(page, SHORT)
    page.route("**/v1/documents", lambda route: held.append(route))
    page.click("#vector")
    page.click("#stop")
    assert focused(page) == "results"


def test_one_failure_is_told_once(page: Page) -> None:
    """A head has a map and topics, which fail for one reason."""
    page.click("#sample")
    settle(page)
    page.route("**/v1/attention/map", QUEUE_FULL)
    page.evaluate(
        """() => {
          window.told = [];
          const note = (changes) => changes.forEach((one) => window.told.push(...one.addedNodes));
          new MutationObserver(note).observe(document.querySelector("#error"), { childList: true });
        }"""
    )
    page.click("[data-place='5.5']")
    page.wait_for_selector("#topics-hint:has-text('could not be read')")
    page.wait_for_selector("[aria-busy=true]", state="detached")
    assert page.evaluate("told.map((one) => one.textContent)") == [
        "The queue is full.",
        "Try again",
    ]


LISTEN = """() => {
  window.told = [];
  const live = "[role=status], [role=alert], [aria-live]";
  const note = (changes) => {
    for (const { target, addedNodes } of changes) {
      if (target.closest(live)) for (const one of addedNodes) window.told.push(one.textContent);
    }
  };
  new MutationObserver(note).observe(document.body, { childList: true, subtree: true });
}"""


def test_results_are_told_once(page: Page) -> None:
    page.evaluate(LISTEN)
    read(page, SHORT)
    page.click("#tab-edit")
    page.fill("#edit-text", SHORT)
    page.click("#edit-read")
    page.wait_for_selector("#edited")
    page.click("#tab-similarity")
    page.click("#compare")
    page.wait_for_selector(".matrix")
    results = page.evaluate("told.filter((one) => !/^(Tokenis|Read|Find)ing/.test(one))")
    assert [one for one in results if one] == [
        page.text_content("#facts"),
        page.text_content("#edit-facts"),
        page.text_content(".matrix caption"),
    ]
    page.click("#theme")
    assert page.evaluate("told.at(-1)") == results[-1]


def test_another_theme_leaves_the_table_of_cosines(page: Page) -> None:
    page.click("#tab-similarity")
    page.click("#compare")
    cell = page.wait_for_selector(".cosine")
    assert cell is not None
    colour = "one => one.style.backgroundColor"
    before = cell.evaluate(colour)
    page.click("#theme")
    assert cell.evaluate("one => one.isConnected")
    assert cell.evaluate(colour) != before


def test_a_square_that_has_the_focus_is_read_out_once(page: Page) -> None:
    """By its name: the line below, which says the same for the eyes, is not told as well."""
    read(page, SHORT)
    page.focus("[data-place='0.0']")
    words = page.inner_text("#reading")
    assert page.get_attribute("[data-place='0.0']", "aria-label") == words
    assert page.locator("#reading[aria-live]").count() == 0
