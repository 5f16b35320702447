"""Checks the papers' claims once per process, in the background, when a caller starts it.

The application owns the task and stops it; the routes start it and read the rows. The claims are
imported when someone asks for them: a server starts without.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from engine.async_engine import AsyncEngine
from engine.errors import LLNError
from service.errors import as_lln_error

if TYPE_CHECKING:
    from engine.claims.claim import ClaimRow

log = logging.getLogger(__name__)

ClaimsState: TypeAlias = Literal["not_started", "computing", "done", "failed"]


class ClaimsProgress(NamedTuple):
    state: ClaimsState
    total: int
    rows: Sequence[ClaimRow]  # in the order of the claims; grows while computing
    failure: LLNError | None


class ClaimsJob:
    """Checks the claims in the background and keeps the rows: they do not change."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._rows: list[ClaimRow] = []
        self._task: asyncio.Task[None] | None = None
        self._failure: LLNError | None = None

    def start(self) -> None:
        """Starts the checks, unless they run or are done. Those that failed start again."""
        if self._task is None or self._failure is not None:
            self._rows, self._failure = [], None
            self._task = asyncio.create_task(self._check())

    def read(self) -> ClaimsProgress:
        """The rows so far."""
        from engine.claims.check import CLAIMS

        return ClaimsProgress(self._state, len(CLAIMS), tuple(self._rows), self._failure)

    @property
    def _state(self) -> ClaimsState:
        if self._failure is not None:
            return "failed"
        if self._task is None:
            return "not_started"
        return "done" if self._task.done() else "computing"

    async def stop(self) -> None:
        """Cancels the checks."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _check(self) -> None:
        from engine.claims.check import check_claims, document_start

        try:
            await check_claims(self._engine, text=document_start(), progress=self._rows.append)
        except Exception as failure:
            self._failure = as_lln_error(failure)
            if self._failure is not failure:
                log.exception("the claims could not be checked")
