"""The papers' claims, checked once a process, when they are first asked for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

from engine.claims import CLAIMS, ClaimRow
from engine.claims.heads import document_start
from engine.engine import AsyncEngine
from engine.errors import LLNError
from service.errors import as_lln_error

log = logging.getLogger(__name__)

ClaimsState: TypeAlias = Literal["computing", "done"]


class ClaimsSoFar(NamedTuple):
    state: ClaimsState
    total: int
    rows: Sequence[ClaimRow]  # in the order of the claims; grows while computing


class ClaimsBook:
    """Rows that do not change while the process lives, so that they are computed once."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._rows: list[ClaimRow] = []
        self._task: asyncio.Task[None] | None = None
        self._failure: LLNError | None = None

    def read(self) -> ClaimsSoFar:
        """What is known by now. The first reader starts the work; so does the first one after a
        failure, which is told to one reader."""
        if self._failure is not None:
            failure, self._failure, self._task = self._failure, None, None
            raise failure
        if self._task is None:
            self._rows = []
            self._task = asyncio.create_task(self._check())
        state: ClaimsState = "done" if len(self._rows) == len(CLAIMS) else "computing"
        return ClaimsSoFar(state, len(CLAIMS), tuple(self._rows))

    async def stop(self) -> None:
        """Gives up what runs."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _check(self) -> None:
        try:
            await self._engine.claims(text=document_start(), progress=self._rows.append)
        except Exception as failure:
            self._failure = as_lln_error(failure)
            if self._failure is not failure:
                log.exception("claims could not be checked")
