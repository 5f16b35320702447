"""The page with models that differ: in their tokens, their heads and what can be read of them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.service.page.browser import fresh_tab, go, read, settle, window_of

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    from tests.conftest import WriteCheckpoint

pytestmark = pytest.mark.long

TEXT = "seven wizards box, and every passage is read once; then it is remembered by the others"
IDLE_S = 2


def test_models_that_differ(
    browser: Browser, start_server: Any, write_checkpoint: WriteCheckpoint
) -> None:
    """Two tokenizers, layers within sliding windows, and texts that are soon let go."""
    whole = str(write_checkpoint("bert", num_hidden_layers=5))
    sliding = str(write_checkpoint("modernbert"))
    server = start_server(LLN_MODELS=f"{whole},{sliding}", LLN_ENGINE__MAX_OPEN_IDLE_S=str(IDLE_S))
    with fresh_tab(browser, server.http_url) as tab:
        go(tab)
        tab.select_option("#beside", sliding)
        read(tab, TEXT)
        check_passages(tab, whole, sliding)
        check_cells(tab, sliding)
        check_heads(tab, sliding)
        check_letting_go(tab)
        tab.click("#edit")
        tab.select_option("#model", sliding)
        tab.select_option("#beside", "")
        read(tab, TEXT)
        check_sliding_windows(tab)


def check_passages(page: Page, *models: str) -> None:
    """Both maps show the same part of the text, each in tokens of its own."""
    offsets = [offsets_of(page, model) for model in models]
    assert [window_of(page, index)[1] for index in range(2)] == [len(each) for each in offsets]
    page.click("#zoom-in")
    settle(page)
    (start, end), (first, last) = (passage(page, index, offsets[index]) for index in range(2))
    assert first <= start < end <= last
    assert (last - first) - (end - start) < 8, "no more than the tokens that reach beyond it"


def check_cells(page: Page, model: str) -> None:
    page.click("#zoom-all")
    settle(page)
    canvas = page.locator("canvas.map").nth(1)
    side = canvas.bounding_box()
    assert side is not None
    canvas.hover(position={"x": 0.8 * side["width"], "y": 0.9 * side["height"]})
    said = re.match(r"“(.+?)” \((\d+)\)", page.inner_text("#cell"))
    assert said is not None, "a cell of this map is one token of it"
    start, end = offsets_of(page, model)[int(said[2])]
    assert said[1].strip() == TEXT[start:end].strip()


def check_heads(page: Page, model: str) -> None:
    """The second model has a layer less than the first."""
    page.locator("[data-place='4.1']").first.click()
    page.wait_for_selector(f".map-figure:has-text('{model} has no head 1 in layer 4')")
    assert page.locator("canvas.map:visible").count() == 1


def check_letting_go(page: Page) -> None:
    page.wait_for_timeout(1_000 * IDLE_S + 200)
    page.locator("[data-place='3.2']").first.click()
    captions = ".map-figure figcaption:has-text('layer 3, head 2')"
    page.wait_for_selector(captions)
    settle(page)
    assert page.locator(captions).count() == 2
    assert page.locator("#error").is_hidden()


def check_sliding_windows(page: Page) -> None:
    assert page.locator(".head.closed").count() == 2 * 4
    square = page.locator("[data-place='1.1']")
    assert square.get_attribute("aria-disabled") == "true"
    square.click(force=True)
    assert "sliding window attention, which cannot be measured" in page.inner_text("#reading")
    assert page.inner_text("#map-title") == "Attention of layer 0, head 0"
    page.wait_for_url(re.compile("layer=0"))
    page.goto(page.url.replace("layer=0", "layer=1"))
    page.wait_for_url(re.compile("layer=0"))
    settle(page)
    assert page.locator("#error").is_hidden()


def offsets_of(page: Page, model: str) -> list[list[int]]:
    answer = page.request.post("/v1/tokenize", data={"text": TEXT, "model": model})
    offsets: list[list[int]] = answer.json()["offsets"]
    return offsets


def passage(page: Page, index: int, offsets: list[list[int]]) -> tuple[int, int]:
    first, last = window_of(page, index)[:2]
    return offsets[first][0], offsets[last - 1][1]
