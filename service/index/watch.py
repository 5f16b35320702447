"""Tells when something in a folder may have changed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

from service.index.scan import is_own
from service.index.store import DATABASE
from service.readers.files import may_be_in

log = logging.getLogger(__name__)

POLL_S = 2.0
"""The pause between two looks, where the system does not report changes."""


async def changes_of(folder: Path, place: Path) -> AsyncIterator[None]:
    """Yields after files of the folder changed, without end. What lies in `place` is not of it, but
    it also yields if the index there is deleted or replaced.

    The next yield covers what changed while the caller was working. Without watchfiles
    (the extra `index`), or if something in the folder cannot be watched, it yields every two
    seconds.
    """
    try:
        async for _ in _watched(folder, place):
            yield
    except* ImportError:
        pass
    except* (OSError, UnicodeError, RuntimeError) as failed:
        # One folder that may not be read would hide others, or all are gone. Or a name is not
        # UTF-8, of which watchfiles tells in an error of its own.
        log.warning("%s: looking for changes every %g s", failed.exceptions[0], POLL_S)
    while True:
        await asyncio.sleep(POLL_S)
        yield


async def _watched(folder: Path, place: Path) -> AsyncIterator[None]:
    from watchfiles import Change, awatch

    def concerns(change: Change, path: str) -> bool:
        file = Path(path)
        if file == place / DATABASE and change != Change.modified:
            return True
        return may_be_in(folder, file) and not is_own(file, folder, place)

    async for _ in awatch(folder, watch_filter=concerns):
        yield
