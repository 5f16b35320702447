"""The page's address: what a link opens, what is said where it cannot, what is copied."""

from __future__ import annotations

import base64
import random
import re
import zlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.service.page.browser import (
    FAR_HOST,
    fresh_tab,
    go,
    read,
    settle,
    shown_text,
    submit,
    window_of,
)

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.long


TEXT = "The keeper wrote it all down: the hour of lighting, the weather, the ships that passed."


def test_a_link_opens_the_same_view(page: Page, browser: Browser, http: httpx.Client) -> None:
    read(page, TEXT)
    page.click("[data-place='4.3']")
    page.click("#zoom-in")
    settle(page)
    page.wait_for_url(re.compile("rows="))
    with fresh_tab(browser, str(http.base_url)) as other:
        other.goto(page.url)
        settle(other)
        other.wait_for_selector(".map-figure figcaption:has-text('layer 4, head 3')")
        assert window_of(other) == window_of(page)


def test_a_link_opens_in_the_tab_that_has_the_page(page: Page) -> None:
    read(page, "A text that is read first.")
    page.click("[data-place='4.3']")
    page.wait_for_url(re.compile("layer=4"))
    first = page.url
    page.click("#edit")
    read(page, "Another text.")
    page.wait_for_url(lambda url: url != first)
    page.goto(first)  # which differs in what follows # alone, so the page is not loaded anew
    page.wait_for_selector("#facts:has-text('26 characters')")
    settle(page)
    page.wait_for_selector(".map-figure figcaption:has-text('layer 4, head 3')")
    page.focus("#skip")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "results"
    assert page.url == first
    page.goto(re.sub("text=z.*", "text=zAAAA", first))
    page.wait_for_selector("#error:has-text('This link is damaged')")
    assert shown_text(page) == "A text that is read first."
    page.goto("/#")
    page.wait_for_selector("#results", state="hidden")


def packed(pieces: Iterable[bytes]) -> str:
    """As link.js packs a text."""
    packer = zlib.compressobj(9, wbits=-15)
    whole = b"".join(packer.compress(piece) for piece in pieces) + packer.flush()
    return "z" + base64.urlsafe_b64encode(whole).decode().rstrip("=")


def test_a_long_text_in_a_link_is_read_when_the_user_agrees(
    browser: Browser, http: httpx.Client
) -> None:
    """Any site can link here. The text is one unknown word, so it is quick to read."""
    text = "a" * 30_000
    with fresh_tab(browser, str(http.base_url)) as tab:
        methods: list[str] = []
        tab.on("request", lambda request: methods.append(request.method))
        tab.goto(f"/#layer=4&head=3&text={packed([text.encode()])}")
        tab.wait_for_selector("#link:has-text('30,000 characters')")
        tab.wait_for_timeout(500)
        assert "POST" not in methods
        tab.select_option("#model", "sentence-transformers/all-MiniLM-L6-v2")
        tab.click("#read-link")
        settle(tab)
        assert "read by sentence-transformers/all-MiniLM-L6-v2" in tab.inner_text("#facts")
        tab.wait_for_selector(".map-figure figcaption:has-text('layer 4, head 3')")
        assert tab.locator("#link").is_hidden()
        link = tab.url
        tab.evaluate("location.hash = ''")
        tab.wait_for_selector("#results", state="hidden")
        tab.goto(link)  # the user has agreed
        tab.wait_for_selector("#results")
        assert tab.locator("#link").is_hidden()


@pytest.mark.parametrize("mebibytes", [33, 420])
def test_a_link_that_unpacks_to_more_than_the_server_accepts(
    mebibytes: int, browser: Browser, http: httpx.Client
) -> None:
    with fresh_tab(browser, str(http.base_url)) as tab:
        tab.goto(f"/#text={packed(b'a' * 2**20 for _ in range(mebibytes))}")
        tab.wait_for_selector("#error:has-text('too long for this server')")
        read(tab, TEXT)  # the tab lives
        assert shown_text(tab) == TEXT


def test_links_to_long_texts_over_plain_http(browser: Browser, http: httpx.Client) -> None:
    """There the browser has neither crypto.subtle nor a clipboard."""
    one, other = long_text(1), long_text(2)
    assert len(one) == len(other)
    with fresh_tab(browser, f"http://{FAR_HOST}:{http.base_url.port}") as tab:
        go(tab)
        assert not tab.evaluate("isSecureContext")
        first = link_to(tab, one)
        tab.click("#edit")
        second = link_to(tab, other)
        assert first != second
        selected = tab.evaluate("document.activeElement.id + ' ' + getSelection()")
        assert selected == f"copy-text {second}"
        tab.goto("about:blank")
        tab.goto(first.replace("layer=0&head=0", "layer=2&head=3"))
        tab.wait_for_selector("#error:has-text('too long to be in it')")
        submit(tab, one)
        tab.wait_for_selector("#map-title:has-text('layer 2, head 3')")
        assert shown_text(tab).startswith(one[:40])


def long_text(seed: int) -> str:
    """Beyond what a link holds, and yet soon read: to the tokenizer it is one unknown word."""
    return random.Random(seed).randbytes(9_500).hex()


def link_to(page: Page, text: str) -> str:
    submit(page, text)
    page.wait_for_selector("#source", state="hidden")
    settle(page)  # results that still arrive would move the buttons from under the mouse
    page.click("#share")
    page.wait_for_selector("#copy")
    return page.url
