"""Takes the pictures of docs/screenshots from a running server: take_screenshots.py [ADDRESS].

It needs playwright and a Chromium, as the tests of the page do.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from playwright.sync_api import sync_playwright

from tests.service.browser import BROWSERS, FLAGS, settle

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "screenshots"
DESK, PHONE = {"width": 1400, "height": 1000}, {"width": 360, "height": 740}
HEAD = "[data-place='3.5']"
SOFTMAX = "sentence-transformers/all-MiniLM-L6-v2"


def main() -> None:
    address = sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8000"
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(FLAGS))
        for take in (document, map_from_near, two_models, similarity, phone, phone_error):
            take(browser, address)
        browser.close()


def document(browser: Browser, address: str) -> None:
    page = opened(browser, address)
    read_sample(page)
    page.wait_for_selector(".topic")
    page.locator(".topic").first.click()
    page.evaluate("scrollTo(0, 0)")
    take_picture(page, "light")


def map_from_near(browser: Browser, address: str) -> None:
    page = opened(browser, address)
    read_sample(page)
    for _ in range(3):
        page.click("#zoom-in")
    settle(page)
    page.locator("canvas.map").click(position={"x": 300, "y": 300})
    page.locator("#map-card").scroll_into_view_if_needed()
    take_picture(page, "zoom")


def two_models(browser: Browser, address: str) -> None:
    page = opened(browser, address)
    page.click("#theme")
    page.select_option("#beside", SOFTMAX)
    read_sample(page)
    page.evaluate("scrollTo(0, 0)")
    take_picture(page, "dark-side-by-side", whole=True)


def similarity(browser: Browser, address: str) -> None:
    page = opened(browser, address)
    page.click("#tab-similarity")
    page.click("#similarity-form .primary")
    page.wait_for_selector(".matrix")
    take_picture(page, "similarity")


def phone(browser: Browser, address: str) -> None:
    page = opened(browser, address, PHONE)
    read_sample(page)
    page.evaluate("scrollTo(0, 0)")
    take_picture(page, "phone")


def phone_error(browser: Browser, address: str) -> None:
    page = opened(browser, address, PHONE)
    page.click("#read")
    page.wait_for_selector("#error:has-text('no text')")
    take_picture(page, "phone-error")


def opened(browser: Browser, address: str, size: dict[str, int] | None = None) -> Page:
    chosen = size or DESK
    page = browser.new_page(viewport={"width": chosen["width"], "height": chosen["height"]})
    page.goto(address)
    page.wait_for_selector("#model option", state="attached")
    return page


def read_sample(page: Page) -> None:
    page.click("#sample")
    settle(page)
    page.click(HEAD)
    page.wait_for_selector(".map-figure figcaption:has-text('layer 3, head 5')")
    settle(page)


def take_picture(page: Page, name: str, *, whole: bool = False) -> None:
    page.screenshot(path=FOLDER / f"{name}.png", full_page=whole)
    page.close()


if __name__ == "__main__":
    main()
