"""Which of pytest's workers takes a test: one takes all tests of the page.

What its server has answered to one of them is known to the others (tests/service/browser.py).
"""

from __future__ import annotations

import re

from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

_OF_THE_PAGE = re.compile(r"tests/service/test_page\w*\.py")


class PageTogether(LoadFileScheduling):  # type: ignore[misc]
    """Hands out whole files, those of the page as one."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return _OF_THE_PAGE.pattern if _OF_THE_PAGE.fullmatch(file) else file
