"""A request for the device: what the caller asks for, how it waits, and how it is answered.

`Request` is what the caller asks for and never changes. An `Entry` is an admitted request, with the
future that its caller awaits. A `Unit` is what the device runs in one go. An `Update` is
what a unit meant for one entry.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar

from engine.errors import DeviceFailure, InsufficientMemory, LLNError
from engine.platform.memory import is_out_of_memory
from engine.types import Priority

PayloadT = TypeVar("PayloadT")
ValueT = TypeVar("ValueT")

CallKind: TypeAlias = Literal["calibration", "diagnosis", "benchmark", "drift"]
UnitKind: TypeAlias = Literal["batch", "sweep_tile", CallKind]

MAX_INTERVALS = 64
"""Busy intervals of one text. Traces of a long text stay as small as those of a short one."""

_LEAST_LEFT = 0.02
"""The share of a text that is left at least until it ends, whatever was expected of its time."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Request(Generic[PayloadT]):
    """What a caller asks of the device: to read one text, or to run one call."""

    model: str
    payload: PayloadT
    """A text as the device reads it, or a call: a function without arguments."""

    tokens: int
    kind: UnitKind = "batch"
    """A text of kind "sweep_tile" is read tile by tile, and other work runs between two tiles. All
    kinds but this and "batch" are calls."""

    num_bytes: int = 0
    """Memory that a tiled text needs from its first tile to its last."""

    seconds: float = 0.0
    """How long a text takes when it runs alone, as far as is known."""

    after_s: float = 0.0
    """How long the earlier texts of the same call take when they run alone."""

    priority: Priority = "normal"
    needs_ranks: bool = False
    """Whether all ranks read this tiled text together: they read one at a time."""

    on_event: Callable[[Any], None] | None = None
    """Called on the event loop with each event of a tiled text."""

    @property
    def is_tiled(self) -> bool:
        return self.kind == "sweep_tile"

    @property
    def is_call(self) -> bool:
        return self.kind not in ("batch", "sweep_tile")


class BusyInterval(NamedTuple):
    """A time in which the device read one or more tiles of a text, perhaps with other work in
    between."""

    began_at: float  # by time.monotonic()
    ended_at: float
    busy_s: float  # the time of the tiles themselves, without the other work
    tiles: int

    def joined_with(self, later: BusyInterval) -> BusyInterval:
        return BusyInterval(
            self.began_at,
            later.ended_at,
            self.busy_s + later.busy_s,
            self.tiles + later.tiles,
        )


class BusyIntervals:
    """When the device read a text's tiles. When there are too many intervals, each two become one,
    so that a million tokens need no more of them than a few."""

    def __init__(self) -> None:
        self._intervals: list[BusyInterval] = []
        self._tiles_each = 1

    @property
    def busy_s(self) -> float:
        return sum(interval.busy_s for interval in self._intervals)

    def add_tile(self, began_at: float, seconds: float) -> None:
        tile = BusyInterval(began_at, began_at + seconds, seconds, tiles=1)
        if self._intervals and self._intervals[-1].tiles < self._tiles_each:
            self._intervals[-1] = self._intervals[-1].joined_with(tile)
            return
        if len(self._intervals) == MAX_INTERVALS:
            pairs = zip(self._intervals[::2], self._intervals[1::2], strict=True)
            self._intervals = [first.joined_with(second) for first, second in pairs]
            self._tiles_each *= 2
        self._intervals.append(tile)

    def as_tuple(self) -> tuple[BusyInterval, ...]:
        return tuple(self._intervals)


class TimedResult(NamedTuple, Generic[ValueT]):
    """A result, and the time that it took."""

    value: ValueT
    queue_s: float
    compute_s: float  # of the unit or units it ran in
    started_at: float | None = None  # when the first unit started, by time.monotonic()
    intervals: Sequence[BusyInterval] = ()  # of a tiled text
    tokens: int = 0  # of the request
    ranks: int = 1  # that read the text together


@dataclass(eq=False, kw_only=True, slots=True)
class Entry:
    """A request in the queue or on the device. Times are those of time.monotonic()."""

    request: Request[Any]
    future: asyncio.Future[Any]
    enqueued_at: float
    deadline: float | None = None
    # The scheduler sets this: the order of arrival.
    number: int = field(default=-1, init=False)
    # The worker sets these: the timer fires at the deadline, the first unit starts the entry.
    timer: asyncio.TimerHandle | None = field(default=None, init=False)
    started_at: float | None = field(default=None, init=False)
    listener_failed: bool = field(default=False, init=False)
    # The executor counts this: the device's time for the tiles of a tiled text so far.
    busy_s: float = field(default=0.0, init=False)

    @property
    def tokens_left(self) -> int:
        """Tokens that the device has still to read, as far as a tiled text's time tells."""
        request = self.request
        if not self.busy_s or not request.seconds:
            return request.tokens
        left = 1 - self.busy_s / request.seconds
        return round(request.tokens * max(left, _LEAST_LEFT))

    def has_departed(self, now: float) -> bool:
        """Whether nobody waits for the result any more."""
        return self.future.done() or (self.deadline is not None and now >= self.deadline)


@dataclass(frozen=True, slots=True)
class Unit:
    """What the device runs in one go: texts of one model, one tile of a text, or a call."""

    entries: tuple[Entry, ...]
    interrupts_tiled: bool = False
    """Whether a tiled text that has begun waits meanwhile."""

    delays_short: bool = False
    """Whether short texts wait meanwhile."""

    @property
    def model(self) -> str:
        return self.entries[0].request.model

    @property
    def kind(self) -> UnitKind:
        return self.entries[0].request.kind

    @property
    def is_tile(self) -> bool:
        return self.entries[0].request.is_tiled

    @property
    def tokens(self) -> int:
        return sum(entry.request.tokens for entry in self.entries)


@dataclass(frozen=True, slots=True)
class Update:
    """What a unit meant for one entry: events on the way, and at the end a result or an error."""

    entry: Entry
    result: TimedResult[Any] | None = None
    error: LLNError | None = None
    events: Sequence[object] = ()

    def deliver(self) -> None:
        """Answer the caller, unless it has left. Call this on the event loop."""
        future = self.entry.future
        if future.done():
            return
        self._deliver_events()
        if self.error is not None:
            future.set_exception(self.error)
        elif self.result is not None:
            future.set_result(self.result)

    def _deliver_events(self) -> None:
        on_event = self.entry.request.on_event
        if on_event is None or self.entry.listener_failed:
            return
        try:
            for event in self.events:
                on_event(event)
        except Exception:
            # A mistake in the caller's own function must cost neither its result nor others'.
            logger.exception("on_event failed and will not be called again")
            self.entry.listener_failed = True


def error_for_caller(error: BaseException) -> LLNError:
    """A fresh exception for one caller, raised from what went wrong on the device."""
    if isinstance(error, LLNError):
        answer = error.for_caller()
    elif is_out_of_memory(error):
        answer = InsufficientMemory("There is not enough memory for this work, even alone.")
    elif isinstance(error, Exception):
        answer = DeviceFailure(f"The device failed on this work ({type(error).__name__}).")
    else:
        answer = DeviceFailure(f"The device thread died ({type(error).__name__}).")
    answer.__cause__ = error
    return answer
