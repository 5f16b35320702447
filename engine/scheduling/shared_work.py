"""What the event loop and the device's thread share: accepted work, and whether more may come.

One lock guards all of it. Nothing here calls back, so no caller holds the lock for long.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple

from engine.errors import EngineUnavailable
from engine.scheduling.admission import QueueLimits
from engine.scheduling.deadline import deadline_exceeded
from engine.scheduling.request import Entry, Unit, Update
from engine.scheduling.scheduler import Scheduler
from engine.types import Outstanding


class Turn(NamedTuple):
    """What the thread does next: run a unit, free memory, rest, end, or ask again."""

    unit: Unit | None = None
    given_up: Sequence[Entry] = ()
    """Tiled texts that have begun and whose callers have left."""

    is_idle: bool = False
    """Whether there was nothing to do for as long as the thread would wait."""

    is_last: bool = False


class Waiting(NamedTuple):
    """Texts in the queue."""

    num_texts: int
    num_tokens: int


class SharedWork:
    """Accepted work from its queue to its end, and the worker's state."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._limits = QueueLimits(scheduler)
        self._changed = threading.Condition(threading.Lock())  # guards all here
        self._state: Literal["starting", "accepting", "draining", "ended", "dead"] = "starting"
        self._num_sessions = 0
        self._running: Unit | None = None
        self._running_since = 0.0

    @property
    def is_accepting(self) -> bool:
        return self._state == "accepting"

    @property
    def is_dead(self) -> bool:
        """Whether the thread failed."""
        return self._state == "dead"

    @property
    def busy_s(self) -> float:
        """How long the current unit has been running; 0 between units."""
        with self._changed:
            return 0.0 if self._running is None else time.monotonic() - self._running_since

    @property
    def outstanding(self) -> Outstanding:
        """The tokens of accepted work that the device has still to read."""
        with self._changed:
            return self._scheduler.outstanding(self._running)

    @property
    def waiting(self) -> Waiting:
        with self._changed:
            return Waiting(self._scheduler.num_waiting, self._scheduler.waiting_tokens)

    # On the event loop

    def begin(self) -> None:
        """Accept work from now on."""
        self._state = "accepting"

    def stop_accepting(self) -> None:
        with self._changed:
            if self._state not in ("ended", "dead"):
                self._state = "draining"
            self._changed.notify()

    def open_session(self) -> None:
        """The work of a session does not end before it is closed."""
        with self._changed:
            self._num_sessions += 1

    def close_session(self) -> None:
        with self._changed:
            self._num_sessions -= 1
            self._changed.notify()

    def has_room(self, num_tokens: int) -> bool:
        with self._changed:
            return self._scheduler.can_add(num_tokens)

    def add(
        self,
        entries: Sequence[Entry],
        timeout_s: float | None,
        *,
        is_later_part: bool,
        later_tokens: int,
    ) -> None:
        """Check and queue under one lock, so that nothing is queued for a thread that just died."""
        with self._changed:
            self._check_state(is_later_part)
            if timeout_s is not None and timeout_s <= 0:
                raise deadline_exceeded(timeout_s, 0.0)
            if not is_later_part:
                self._limits.check([entry.request for entry in entries], later_tokens)
            for entry in entries:
                self._scheduler.add(entry)
            self._changed.notify()

    def _check_state(self, is_later_part: bool) -> None:
        if self._state == "accepting" or (is_later_part and self._state == "draining"):
            return
        why = {"starting": "has not started", "dead": "failed"}.get(self._state, "is stopping")
        raise EngineUnavailable(f"The engine takes no work: it {why}.")

    def remove(self, entry: Entry) -> bool:
        """Take an entry out of the queue; False if it is no longer there. The thread frees the
        memory of a tiled text: the loop should not spend its time on gigabytes."""
        with self._changed:
            was_there = self._scheduler.remove(entry)
            self._changed.notify()  # it may have been all that a stop waited for
        return was_there

    def abandon(self) -> list[Entry]:
        """End, and return the entries that are left without an answer."""
        with self._changed:
            if self._state != "dead":
                self._state = "ended"
            entries = self._remove_unanswered()
            self._changed.notify()
        return entries

    # On the device's thread

    def next_turn(self, begun: Collection[Entry], patience_s: float) -> Turn:
        """Wait for work, for as long as this. `begun` are the tiled texts between two tiles."""
        with self._changed:
            self._running = None
            given_up = [entry for entry in begun if not self._scheduler.has_tiled(entry)]
            if given_up:
                return Turn(given_up=given_up)
            unit = self._scheduler.next_unit(time.monotonic())
            if unit is not None:
                self._running, self._running_since = unit, time.monotonic()
                return Turn(unit)
            if self._is_done:
                self._state = "ended"
                return Turn(is_last=True)
            return Turn(is_idle=not self._changed.wait(patience_s))

    @property
    def _is_done(self) -> bool:
        if self._state == "draining" and not self._num_sessions:
            return self._scheduler.is_empty
        return self._state == "ended"

    def record(self, unit: Unit, compute_s: float, *, failed: bool) -> None:
        """Count a unit's time: for the shares of the device, and for when to come back."""
        with self._changed:
            self._scheduler.record(unit, compute_s)
            if not failed and unit.kind == "batch":
                self._limits.token_rate.add(unit.tokens, compute_s)
            elif not failed and not unit.is_tile:
                self._limits.call_rate.add(1, compute_s)

    def end_tiled(self, entry: Entry, updates: Sequence[Update]) -> None:
        with self._changed:
            self._scheduler.remove(entry)
            for update in updates:
                if update.result is not None:
                    self._limits.token_rate.add(entry.request.tokens, update.result.compute_s)

    def die(self) -> list[Entry]:
        """Refuse all work, and return the entries without an answer. Work is queued under the same
        lock, so nobody is missed."""
        with self._changed:
            self._state = "dead"
            return self._remove_unanswered()

    def _remove_unanswered(self) -> list[Entry]:
        """The entries that run or wait. They no longer wait afterwards."""
        running = () if self._running is None else self._running.entries
        # A tiled text is in both places while one of its tiles runs.
        return list(dict.fromkeys([*running, *self._scheduler.remove_all()]))
