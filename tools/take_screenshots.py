"""Takes the screenshot of the README from a running server: take_screenshots.py [ADDRESS].

It needs playwright and Chromium, like the tests of the page.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

from tests.service.page.browser import BROWSERS, FLAGS, settle

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "screenshots"
HEAD = "[data-place='3.5']"


def main() -> None:
    address = sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8000"
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(FLAGS))
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.goto(address)
        page.wait_for_selector("#model option", state="attached")
        page.click("#sample")
        settle(page)
        page.click(HEAD)
        page.wait_for_selector(".map-figure figcaption:has-text('layer 3, head 5')")
        settle(page)
        page.wait_for_selector(".topic")
        page.locator(".topic").first.click()
        page.evaluate("scrollTo(0, 0)")
        page.screenshot(path=FOLDER / "light.png")
        browser.close()


if __name__ == "__main__":
    main()
