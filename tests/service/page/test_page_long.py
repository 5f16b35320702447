"""The page with a text that takes a while: what is known shows, and what is awaited is named."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.service.page.browser import QUEUE_FULL, read, sample, settle, submit

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.long

STRUCTURE = "**/v1/structure"
OPENING = sample()[:700]


def test_heads_and_maps_do_not_wait_for_the_structure(page: Page) -> None:
    held: list[Any] = []
    page.route(STRUCTURE, lambda route: held.append(route))
    submit(page, OPENING)
    page.wait_for_selector("#charts svg")
    page.wait_for_selector(".map[aria-label*='layer 0, head 0']")
    assert page.locator(".head.unread").count() == 0
    assert "Finding the structure" in page.inner_text("#outline")
    assert "Finding the structure" in page.inner_text("#status-text")
    held[0].continue_()
    page.wait_for_selector("[role=treeitem]")
    settle(page)


def test_heads_of_a_long_text_come_a_few_at_a_time(page: Page) -> None:
    """And the structure is asked for only when the first ones are there."""
    asked: list[Any] = []

    def answer_the_first(route: Any) -> None:
        asked.append(json.loads(route.request.post_data or ""))
        if len(asked) == 1:
            route.continue_()

    page.route("**/v1/diagnostics", answer_the_first)
    page.route("**/v1/attention/map", lambda route: None)
    page.route(STRUCTURE, lambda route: asked.append("structure"))
    with page.expect_request(STRUCTURE):
        submit(page, "word " * 9_000)
    assert [one["heads"] for one in asked if one != "structure"][:1] == [[0, 1, 2, 3, 4, 5]]
    assert asked[0] != "structure"
    assert page.locator(".head:not(.unread)").count() == 6
    assert page.evaluate("document.querySelector('#progress').value") == pytest.approx(1 / 12)
    assert "layer 1 of 6" in page.inner_text("#status-text")
    page.click("#stop")


def test_the_status_names_the_layer_that_is_read(page: Page) -> None:
    held: list[Any] = []
    page.route("**/v1/diagnostics", lambda route: held.append(route), times=1)
    with page.expect_request("**/v1/diagnostics"):
        submit(page, OPENING)
    page.wait_for_selector("#status-text:has-text('layer 1 of 6')")
    assert page.evaluate("document.querySelector('#progress').value") == 0
    held[0].continue_()
    settle(page)


def test_a_structure_that_was_stopped_or_failed_can_be_found_later(page: Page) -> None:
    page.route(STRUCTURE, lambda route: None)  # never answered
    with page.expect_request(STRUCTURE):
        submit(page, OPENING)
    page.click("#stop")
    page.wait_for_selector("#outline:has-text('Stopped')")
    page.unroute(STRUCTURE)
    page.route(STRUCTURE, QUEUE_FULL)
    page.click("#outline button")
    page.wait_for_selector("#outline:has-text('The queue is full.')")
    page.unroute(STRUCTURE)
    page.click("#outline button")
    page.wait_for_selector("[role=treeitem]")
    page.wait_for_selector("#status", state="hidden")


def test_excerpts_are_of_whole_characters(page: Page) -> None:
    text = "\U0001f9a6" * 60  # of two units each, with a cut after 48 of them or within one
    for before in ("", "a"):
        read(page, before + text)
        shown = page.inner_text("[role=treeitem] .node-text")
        assert shown.endswith("\U0001f9a6…")
        page.click("#edit")
    page.click("#tab-similarity")
    page.locator("#texts textarea").nth(0).fill(f"a{text}")
    page.locator("#texts textarea").nth(1).fill("another")
    page.click("#similarity-form button[type=submit]")
    assert page.inner_text(".matrix th[scope=row]").endswith("\U0001f9a6")


def test_one_is_counted_as_one(page: Page) -> None:
    read(page, ".")
    assert page.inner_text("#facts") == "3 tokens, 1 character, read by default"


def test_a_text_without_words_has_no_parts(page: Page) -> None:
    read(page, "\u200b")
    assert "no parts" in page.inner_text("#outline")


def test_a_map_that_is_awaited_says_so(page: Page) -> None:
    held: list[Any] = []
    page.route("**/v1/attention/map", lambda route: held.append(route))
    submit(page, OPENING)
    page.wait_for_selector("figcaption:has-text('reading the attention of layer 0, head 0')")
    for route in held:
        QUEUE_FULL(route)
    page.wait_for_selector("#error:has-text('The queue is full.')")
    page.unroute("**/v1/attention/map")
    assert "reading" not in page.inner_text(".map-figure figcaption")
    page.click("#error button")
    page.wait_for_selector(".map[aria-label*='layer 0, head 0']")
