"""Which of pytest's workers takes a test: one takes all tests of the page.

They share a browser, and what their server has answered to one of them is known to the others
(tests/service/browser.py).
"""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

from tests.service.browser import is_of_the_page


class PageTogether(LoadFileScheduling):  # type: ignore[misc]
    """Hands out whole files, those of the page as one."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return "the page" if is_of_the_page(file) else file
