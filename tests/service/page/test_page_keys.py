"""The page in a real browser, on a server that asks for API keys."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.service.page.browser import (
    fresh_tab,
    read,
    settle,
    shown_text,
    submit,
)

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

pytestmark = pytest.mark.long


KEY = "a-key-for-the-page-0123"


@pytest.fixture(scope="module")
def guarded(launch_server: Any) -> str:
    url: str = launch_server(LLN_MODELS="default", LLN_API_KEYS=KEY).http_url
    return url


def test_a_server_with_keys_is_given_one(browser: Browser, guarded: str) -> None:
    context = browser.new_context(base_url=guarded)
    tab = context.new_page()
    tab.goto("/")
    tab.wait_for_selector("#key-message:has-text('requires an API key')")
    assert tab.locator("#error").is_hidden()
    give_key(tab, "another-key-0123456789")
    tab.wait_for_selector("#key-message:has-text('does not accept')")
    give_key(tab, KEY)
    tab.wait_for_selector("#model option", state="attached")
    read(tab, "A short text.")
    assert tab.locator("#key").is_hidden()
    tab.wait_for_url(re.compile("text="))  # which the page then reads again by itself
    assert KEY not in tab.url
    tab.reload()
    settle(tab)  # the tab has kept the key
    assert tab.locator("#key").is_hidden()
    stranger = context.new_page()
    stranger.goto(tab.url)
    stranger.wait_for_selector("#key-message:has-text('requires an API key')")
    context.close()


def test_what_is_sent_before_the_key_is_read_with_it(browser: Browser, guarded: str) -> None:
    with fresh_tab(browser, guarded) as tab:
        tab.goto("/")
        tab.wait_for_selector("#key-message:has-text('requires an API key')")
        submit(tab, "A short text.")
        tab.fill("#text", "half of another te")
        give_key(tab, KEY)
        settle(tab)
        assert shown_text(tab) == "A short text."


@pytest.mark.parametrize("first_to_answer", ["v1/models", "v1/diagnostics/instruments"])
def test_a_late_refusal_takes_no_key_away(
    browser: Browser, guarded: str, first_to_answer: str
) -> None:
    """Of two requests that went without a key one is answered after the key was given."""
    with fresh_tab(browser, guarded) as tab:
        late = held_back_without_key(tab, except_for=first_to_answer)
        tab.goto("/")
        tab.wait_for_selector("#key-message:has-text('requires an API key')")
        tab.fill("#key-value", KEY)
        [unanswered] = late
        with tab.expect_response("**/v1/**"):
            unanswered.continue_()
        assert tab.input_value("#key-value") == KEY, "what is being written stays"
        tab.click("#key .primary")
        read(tab, "A short text.")
        assert tab.locator("#key").is_hidden()


def test_a_key_given_while_others_are_under_way_holds_for_them(
    browser: Browser, guarded: str
) -> None:
    with fresh_tab(browser, guarded) as tab:
        tab.goto("/")
        tab.wait_for_selector("#key-message:has-text('requires an API key')")
        under_way = held_back_without_key(tab)
        submit(tab, "A short text.")
        give_key(tab, KEY)
        assert len(under_way) == 2, "of the server's models and instruments, without a key"
        for route in under_way:
            route.continue_()
        settle(tab)
        assert shown_text(tab) == "A short text."
        assert tab.locator("#key").is_hidden()


def held_back_without_key(page: Page, except_for: str = "nothing") -> list[Route]:
    """Such requests of the API, of which the server hears only when they are continued."""
    held: list[Route] = []

    def hold(route: Route) -> None:
        if "authorization" in route.request.headers or except_for in route.request.url:
            route.continue_()
        else:
            held.append(route)

    page.route("**/v1/**", hold)
    return held


def give_key(page: Page, key: str) -> None:
    page.fill("#key-value", key)
    page.click("#key .primary")
