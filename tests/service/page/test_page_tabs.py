"""The page in a real browser: its tabs for documents that change and for similarity."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.service.page.browser import QUEUE_FULL

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.long


def test_a_document_that_is_edited(page: Page) -> None:
    """What was read again is shown apart from what was kept, with how stale that is.

    A segment ends within these paragraphs, so the first is kept when the text grows.
    """
    line = "The keeper of lighthouse number {} wrote down the hours, the weather and {} ships. "
    text = "\n\n".join(line.format(number, number * 7) * 4 for number in range(22, 40))
    page.click("#tab-edit")
    page.fill("#edit-text", text)
    page.click("#edit-read")
    page.wait_for_selector("#passages > .now")
    assert page.locator("#passages > .kept").count() == 0
    assert "nothing is stale" in page.inner_text("#edit-facts")
    page.fill("#edit-text", f"{text}\n\nIn the last year nothing was written at all.")
    page.click("#edit-read")
    page.wait_for_selector("#passages > .kept")
    states = page.locator("#passages > .kept .passage-state").all_inner_texts()
    assert all(re.fullmatch(r"kept, within [\d.e-]+ of a new reading", state) for state in states)
    assert page.locator("#passages > .now:last-child").count() == 1
    assert "of a new reading" in page.inner_text("#edit-facts")
    page.click("#edit-anew")
    page.wait_for_selector("#passages > .kept", state="detached")
    page.fill("#edit-text", " ")
    page.click("#edit-read")
    assert "no text" in page.inner_text("#edit-error")


def test_similarity(page: Page) -> None:
    page.click("#tab-similarity")
    page.click("#similarity-form .primary")
    page.wait_for_selector(".matrix")
    cells = [float(text) for text in page.locator(".cosine").all_inner_texts()]
    assert cells[::4] == [1.0, 1.0, 1.0]
    assert cells[1] > cells[2], "a harbour is nearer to a lighthouse than a pancake is"
    assert page.inner_text(".matrix caption") == "Cosines of all pairs of texts, by default"


def test_the_newest_comparison_is_shown(page: Page) -> None:
    page.click("#tab-similarity")
    held: list[Any] = []
    page.route("**/v1/embeddings", lambda route: held.append(route))
    with page.expect_request("**/v1/embeddings"):
        page.click("#similarity-form .primary")
    page.locator("#texts textarea").first.fill("Another text.")
    with page.expect_request("**/v1/embeddings"):
        page.click("#similarity-form .primary")
    held[1].continue_()
    page.wait_for_selector(".matrix th:has-text('Another text.')")
    held[0].abort()
    assert page.locator("#similarity-error").is_hidden()
    page.locator(".text-row button").first.click()
    assert page.evaluate("document.activeElement.ariaLabel") == "Remove text 1"
    page.click("#add-text")
    labels = page.locator("#texts textarea").evaluate_all("all => all.map(one => one.ariaLabel)")
    assert labels == ["Text 1", "Text 2", "Text 3"]


def test_a_record_goes_with_its_model(page: Page) -> None:
    """A reading of a model that is no longer chosen leaves nothing to read on from."""
    page.click("#tab-edit")
    held: list[Any] = []
    page.route("**/v1/documents", lambda route: held.append(route))
    page.fill("#edit-text", "A text of one line.")
    with page.expect_request("**/v1/documents"):
        page.click("#edit-read")
    page.dispatch_event("#edit-model", "change")
    held[0].continue_()
    page.wait_for_selector("#edited[aria-busy]", state="detached")
    assert page.locator("#passages > li").count() == 0
    assert page.inner_text("#edit-read") == "Read"


def test_another_model_shows_nothing_of_the_one_before(page: Page) -> None:
    page.click("#tab-edit")
    page.fill("#edit-text", "A text of one line.")
    page.click("#edit-read")
    page.wait_for_selector("#edited")
    page.route("**/v1/documents", QUEUE_FULL)
    page.click("#edit-read")
    page.wait_for_selector("#edit-error button")
    page.dispatch_event("#edit-model", "change")
    assert page.locator("#edited").is_hidden()
    assert page.locator("#edit-error").is_hidden()


def test_keys_move_between_tabs(page: Page) -> None:
    page.focus("#tab-document")
    reached = []
    for key in ("End", "ArrowRight", "ArrowLeft", "Home"):
        page.keyboard.press(key)
        reached.append(page.evaluate("document.activeElement.id"))
    assert reached == ["tab-similarity", "tab-document", "tab-similarity", "tab-document"]
    assert page.locator("#view-document").is_visible()
