"""What goes to the device and what comes back from it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from engine.errors import DeviceFailure, InsufficientMemory, LLNError
from engine.jobs import Job
from engine.memory import is_out_of_memory
from engine.stretches import Stretch
from engine.types import Priority

PayloadT = TypeVar("PayloadT")
ValueT = TypeVar("ValueT")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Order(Generic[PayloadT]):
    """One text for the device."""

    payload: PayloadT
    tokens: int
    sweep: bool = False
    """Whether it runs tile by tile, with other work in between."""
    num_bytes: int = 0
    seconds: float = 0.0
    priority: Priority = "normal"
    on_event: Callable[[Any], None] | None = None


class Delivered(NamedTuple, Generic[ValueT]):
    """A result and what it took."""

    value: ValueT
    queue_s: float
    compute_s: float  # of the unit or units it ran in
    started_at: float | None = None  # of the first, by time.monotonic(); None off the thread
    stretches: Sequence[Stretch] = ()  # of a sweep


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a unit meant for one job: news on the way, and at the end a result or an error."""

    job: Job
    result: Delivered[Any] | None = None
    error: LLNError | None = None
    events: Sequence[object] = ()

    def tell(self) -> None:
        """Answer the caller, unless it left."""
        if self.job.future.done():
            return
        self._tell_events()
        if self.error is not None:
            self.job.future.set_exception(self.error)
        elif self.result is not None:
            self.job.future.set_result(self.result)

    def _tell_events(self) -> None:
        listener = self.job.on_event
        if listener is None:
            return
        try:
            for event in self.events:
                listener(event)
        except Exception:
            # The caller's own mistake must not cost it its answer, nor others theirs.
            logger.exception("A listener to events failed, and hears no more")
            self.job.on_event = None


Outcomes: TypeAlias = list[Outcome]


def tell_all(outcomes: Iterable[Outcome]) -> None:
    for outcome in outcomes:
        outcome.tell()


def answer_to(error: BaseException) -> LLNError:
    """An exception of the caller's own, raised from what the device said."""
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
