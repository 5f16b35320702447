"""Searches an index for the callers of a server: off the event loop, one search at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

from engine.async_engine import AsyncEngine
from engine.errors import InvalidInput, LLNError, ResourceNotFound, shown
from engine.scheduling.deadline import Deadline
from service.errors import NotAvailable, StorageFailure
from service.index.errors import IndexMismatch, IndexNotFound
from service.index.open import served_model
from service.index.place import index_folder
from service.index.search import Hit, Searcher, Ways, check_query
from service.index.store import Document, IndexStore, Totals

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")

MAX_LIMIT = 100
"""Most passages in one answer."""


class IndexFacts(NamedTuple):
    folder: str
    model: str
    totals: Totals


class IndexSearch:
    """The index that a server was started with, or none."""

    def __init__(self, given: str, engine: AsyncEngine) -> None:
        self._engine = engine
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="lln-search")
        self._place: Path | None = None
        self._opened: _Opened | None = None
        if given:
            self._place = index_folder(Path(given).expanduser())
            self._opened = _Opened(self._place, engine)

    async def close(self) -> None:
        await asyncio.to_thread(self._pool.shutdown)
        if self._opened is not None:
            self._opened.store.close()

    async def facts(self, timeout_s: float) -> IndexFacts | None:
        """What is indexed; None if the server has no index."""
        if self._place is None:
            return None
        async with Deadline(timeout_s).over():
            return await self._run(_facts)

    async def search(
        self, query: str, *, limit: int, ways: Ways, timeout_s: float
    ) -> tuple[list[Hit], int]:
        """The best passages, and how many tokens the query has."""
        self._check_is_there()
        check_query(query)
        if not 1 <= limit <= MAX_LIMIT:
            raise InvalidInput(
                f"limit must be 1 to {MAX_LIMIT}, got {limit}",
                param="limit",
                limit=MAX_LIMIT,
                actual=limit,
            )
        vector, tokens = None, 0
        async with Deadline(timeout_s).over():
            if ways != "words":
                model = await self._run(lambda opened: opened.model)
                (found,) = await self._engine.embed([query], model=model, timeout_s=timeout_s)
                vector, tokens = found.vector, found.accounting.tokens_embedded
            hits = await self._run(
                lambda opened: opened.searcher.search(query, vector, limit=limit, ways=ways)
            )
        return hits, tokens

    async def document(self, path: str, timeout_s: float) -> Document:
        """A file of the index with its text."""
        self._check_is_there()
        async with Deadline(timeout_s).over():
            found = await self._run(lambda opened: opened.store.document(path))
        if found is None:
            raise ResourceNotFound(
                f"the index has no file {shown(path)!r}", param="file", actual=path
            )
        return found

    def _check_is_there(self) -> None:
        if self._place is None:
            raise NotAvailable(
                "this server searches no folder; start it with LLN_INDEX=FOLDER", code="no_index"
            )

    async def _run(self, ask: Callable[[_Opened], Answer]) -> Answer:
        """Asks the index in its thread. A caller who leaves is not waited for."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._ask, ask)

    def _ask(self, ask: Callable[[_Opened], Answer]) -> Answer:
        assert self._place is not None, "asked only if there is an index"
        try:
            return ask(self._current(self._place))
        except StorageFailure as error:
            log.warning("a search failed: %s", error)
            raise _without_place(error, self._place) from error

    def _current(self, place: Path) -> _Opened:
        if self._opened is None or not self._opened.store.is_in_place:
            # It was rebuilt meanwhile, perhaps with another model.
            if self._opened is not None:
                self._opened.store.close()
                self._opened = None
            self._opened = _opened_again(place, self._engine)
        return self._opened


class _Opened:
    """An open index, and what searches it."""

    def __init__(self, place: Path, engine: AsyncEngine) -> None:
        self.store = IndexStore.open(place)
        try:
            self.model = served_model(self.store.recipe, engine)
        except BaseException:
            self.store.close()
            raise
        self.searcher = Searcher(self.store)


def _opened_again(place: Path, engine: AsyncEngine) -> _Opened:
    """Raises StorageFailure if the index is gone: that is no fault of the search, and the index may
    be about to be rebuilt."""
    try:
        return _Opened(place, engine)
    except (IndexNotFound, IndexMismatch) as error:
        raise StorageFailure(
            f"the index cannot be searched now: {error.message}",
            code=error.code,
            limit=error.limit,
            actual=error.actual,
        ) from error


def _without_place(error: StorageFailure, place: Path) -> LLNError:
    """Callers need not know the server's folders."""
    return error.about(error.param, message=error.message.replace(str(place), "LLN_INDEX"))


def _facts(opened: _Opened) -> IndexFacts:
    recipe = opened.store.recipe
    return IndexFacts(Path(recipe.folder).name, opened.model, opened.store.totals())
