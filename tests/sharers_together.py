"""Which of pytest's workers takes a test: one takes all tests of the page, and one all on Ray.

Those of the page share a browser, and what their server has answered to one of them is known to the
others (tests/service/page/browser.py). Those on Ray share a cluster
(tests/service/replicas/ray_cluster.py).
"""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

from tests.service.page.browser import is_of_the_page
from tests.service.replicas.ray_cluster import is_on_ray


class SharersTogether(LoadFileScheduling):  # type: ignore[misc]
    """Hands out whole files, those that share something as one."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        if is_of_the_page(file):
            return "the page"
        return "on Ray" if is_on_ray(file) else file
