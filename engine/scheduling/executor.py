"""Runs units on the device thread: whole batches and calls, and tiled texts tile by tile."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from engine.errors import DeviceFailure
from engine.platform.memory import is_out_of_memory
from engine.scheduling.observer import EngineObserver
from engine.scheduling.request import (
    BusyIntervals,
    Entry,
    PayloadT,
    TimedResult,
    Unit,
    Update,
    error_for_caller,
)

ResultT = TypeVar("ResultT")
ResultT_co = TypeVar("ResultT_co", covariant=True)

logger = logging.getLogger(__name__)


class TiledWork(Protocol[ResultT_co]):
    """Work on one text that takes many units."""

    @property
    def result(self) -> ResultT_co | None:
        """None until the last step is done."""
        ...

    @property
    def num_ranks(self) -> int:
        """How many ranks read the text together."""
        ...

    def step(self) -> Sequence[object]:
        """Read one tile and return the events of it."""
        ...

    def close(self) -> None:
        """Free what the work holds besides memory. Called once, however it ends."""
        ...


@dataclass(eq=False)
class _Begun(Generic[ResultT]):
    """A tiled text between two of its tiles."""

    work: TiledWork[ResultT]
    busy: BusyIntervals = field(default_factory=BusyIntervals)


class UnitExecutor(Generic[PayloadT, ResultT]):
    """Runs units and returns what each meant for its entries. Only the device's thread uses it."""

    def __init__(
        self,
        *,
        run_batch: Callable[[str, Sequence[PayloadT]], Sequence[ResultT]],
        open_tiled: Callable[[str, PayloadT], TiledWork[ResultT]],
        on_finished: Callable[[Unit, float, bool], None],
        observer: EngineObserver,
    ) -> None:
        """`on_finished` is called with every unit that ran, its seconds and whether it failed."""
        self._run_batch = run_batch
        self._open_tiled = open_tiled
        self._on_finished = on_finished
        self._observer = observer
        self._begun: dict[Entry, _Begun[ResultT]] = {}

    @property
    def begun(self) -> Collection[Entry]:
        """The tiled texts between two tiles."""
        return self._begun.keys()

    def drop(self, entry: Entry) -> None:
        """Free the memory of a tiled text, which takes time."""
        self._begun.pop(entry).work.close()

    def run(self, unit: Unit) -> list[Update]:
        return self._run_tile(unit) if unit.is_tile else self._run_whole(unit)

    def _run_tile(self, unit: Unit) -> list[Update]:
        """Read one tile. A text that ends or fails frees its memory."""
        (entry,) = unit.entries
        request = entry.request
        started_at = time.monotonic()
        try:
            if entry not in self._begun:
                self._begun[entry] = _Begun(self._open_tiled(request.model, request.payload))
            text = self._begun[entry]
            events = text.work.step()
        except Exception as error:
            traceback.clear_frames(error.__traceback__)
            logger.warning("A tiled text of %d tokens failed", request.tokens, exc_info=error)
            self._on_finished(unit, time.monotonic() - started_at, True)
            if entry in self._begun:
                self.drop(entry)
            return [Update(entry, error=error_for_caller(error))]
        tile_s = time.monotonic() - started_at
        text.busy.add_tile(started_at, tile_s)
        entry.busy_s += tile_s
        self._on_finished(unit, tile_s, False)
        if text.work.result is None:
            return [Update(entry, events=events)] if request.on_event is not None else []
        self.drop(entry)
        assert entry.started_at is not None, "the worker sets it before the first tile"
        result = TimedResult(
            text.work.result,
            entry.started_at - entry.enqueued_at,
            text.busy.busy_s,
            entry.started_at,
            text.busy.as_tuple(),
            request.tokens,
            text.work.num_ranks,
        )
        return [Update(entry, result=result, events=events)]

    def _run_whole(self, unit: Unit) -> list[Update]:
        """Run a batch or a call. A unit that fails is run again in parts: in halves if it did not
        fit in memory, else each entry alone, so that only the faulty ones fail."""
        result = self._attempt(unit)
        if not isinstance(result, Exception):
            return result
        # The frames of the failed run would keep its tensors alive as long as the error.
        traceback.clear_frames(result.__traceback__)
        entries = unit.entries
        if len(entries) == 1:
            return [Update(entries[0], error=error_for_caller(result))]
        if is_out_of_memory(result):
            self._observer.recovered_from_oom()
            middle = len(entries) // 2
            return [*self._retry(entries[:middle]), *self._retry(entries[middle:])]
        return [update for entry in entries for update in self._retry((entry,))]

    def _retry(self, entries: Sequence[Entry]) -> list[Update]:
        """Run these entries again, without those whose callers have left meanwhile."""
        now = time.monotonic()
        waiting = tuple(entry for entry in entries if not entry.has_departed(now))
        return self._run_whole(Unit(waiting)) if waiting else []

    def _attempt(self, unit: Unit) -> list[Update] | Exception:
        started_at = time.monotonic()
        try:
            values = self._values(unit)
        except Exception as error:
            logger.warning("A %s of %d failed", unit.kind, len(unit.entries), exc_info=error)
            self._on_finished(unit, time.monotonic() - started_at, True)
            return error
        compute_s = time.monotonic() - started_at
        self._on_finished(unit, compute_s, False)
        return [
            Update(
                entry,
                TimedResult(
                    value,
                    started_at - entry.enqueued_at,
                    compute_s,
                    started_at,
                    tokens=entry.request.tokens,
                ),
            )
            for entry, value in zip(unit.entries, values, strict=True)
        ]

    def _values(self, unit: Unit) -> Sequence[object]:
        payloads = [entry.request.payload for entry in unit.entries]
        if unit.kind != "batch":
            return [payload() for payload in payloads]
        values = self._run_batch(unit.model, payloads)
        if len(values) != len(payloads):
            raise DeviceFailure(
                f"The device returned {len(values)} results for {len(payloads)} texts."
            )
        return values
