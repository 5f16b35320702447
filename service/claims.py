"""Checks the papers' claims once per process, in the background, when the first caller asks.

The application owns the task and stops it; the route only reads the rows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

from engine.async_engine import AsyncEngine
from engine.claims.check import CLAIMS, check_claims, document_start
from engine.claims.claim import ClaimRow
from engine.errors import LLNError
from service.errors import as_lln_error

log = logging.getLogger(__name__)

ClaimsState: TypeAlias = Literal["computing", "done"]


class ClaimsProgress(NamedTuple):
    state: ClaimsState
    total: int
    rows: Sequence[ClaimRow]  # in the order of the claims; grows while computing


class ClaimsJob:
    """Checks the claims in the background and keeps the rows: they do not change."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._rows: list[ClaimRow] = []
        self._task: asyncio.Task[None] | None = None
        self._failure: LLNError | None = None

    def read(self) -> ClaimsProgress:
        """The rows so far. The first call starts the checks.

        If they failed, one call raises the failure, and the next one starts them again.
        """
        if self._failure is not None:
            failure, self._failure, self._task = self._failure, None, None
            raise failure
        if self._task is None:
            self._rows = []
            self._task = asyncio.create_task(self._check())
        state: ClaimsState = "done" if len(self._rows) == len(CLAIMS) else "computing"
        return ClaimsProgress(state, len(CLAIMS), tuple(self._rows))

    async def stop(self) -> None:
        """Cancels the checks."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _check(self) -> None:
        try:
            await check_claims(self._engine, text=document_start(), progress=self._rows.append)
        except Exception as failure:
            self._failure = as_lln_error(failure)
            if self._failure is not failure:
                log.exception("the claims could not be checked")
