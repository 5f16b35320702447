"""Which of pytest's workers takes a test: one takes all tests of the page, and one all on Ray.

Those of the page share a browser, and what their server has answered to one of them is known to the
others (tests/service/page/browser.py). Those on Ray share a cluster
(tests/service/replicas/ray_cluster.py). Those that have the claims checked by the server that a
worker's tests share: apart, the servers of two workers would check all of them.
"""

from __future__ import annotations

import re

from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

from tests.service.page.browser import is_of_the_page
from tests.service.replicas.ray_cluster import is_on_ray

_TESTS_OF_CLAIMS = re.compile(r"tests/service/(test_docs|http/test_http_diagnostics)\.py")


class SharersTogether(LoadFileScheduling):  # type: ignore[misc]
    """Hands out whole files, those that share something as one."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        if is_of_the_page(file):
            return "the page"
        if _TESTS_OF_CLAIMS.fullmatch(file):
            return "the claims"
        return "on Ray" if is_on_ray(file) else file
