"""Tells when something in a folder may have changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from service.index.scan import is_own
from service.readers.files import may_be_in

POLL_S = 2.0
"""Between two looks where watchfiles is not installed."""


async def changes_of(folder: Path, place: Path) -> AsyncIterator[None]:
    """Yields after files of the folder changed, without end. What lies in `place` is not of it.

    The next yield covers what changed while the caller was working. Without watchfiles
    (the extra `index`), it yields every two seconds.
    """
    try:
        from watchfiles import Change, awatch
    except ImportError:
        while True:
            await asyncio.sleep(POLL_S)
            yield

    def concerns(_: Change, path: str) -> bool:
        file = Path(path)
        return may_be_in(folder, file) and not is_own(file, folder, place)

    async for _ in awatch(folder, watch_filter=concerns):
        yield
