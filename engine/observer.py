"""What the engine tells whoever counts: a protocol with a silent default.

Methods are called from the device thread or the event loop; they must be quick and thread-safe.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

from engine.stretches import Stretch

CallKind: TypeAlias = Literal["calibration", "diagnosis", "benchmark", "drift"]
UnitKind: TypeAlias = Literal["batch", "sweep_tile", CallKind]


class Served(NamedTuple):
    """One text that the device is done with."""

    tokens: int
    queue_s: float
    compute_s: float  # of the unit it ran in
    started_at: float | None  # of that unit, by time.monotonic(); None if nobody noted it
    stretches: Sequence[Stretch] = ()  # of a long text that went tile by tile


class EngineObserver:
    """Hears of everything measurable. The base class ignores it all."""

    def accepted(self, *, model: str, tokens: int) -> None:
        """One text was let in."""

    def rejected(self, *, reason: str) -> None:
        """A call was refused at the door; `reason` is the error's code."""

    def truncated(self, *, model: str) -> None:
        """One text was cut because its caller asked for it."""

    def cancelled(self, *, reason: Literal["caller_left", "deadline"]) -> None:
        """One accepted text was given up, before it ran or between two of its tiles."""

    def preempted(self) -> None:
        """A batch ran between two tiles of a sweep."""

    def recovered_from_oom(self) -> None:
        """Work that did not fit in memory was split, to be tried again."""

    def queue_changed(self, *, depth: int, tokens: int) -> None:
        """Texts and tokens that wait now."""

    def unit_finished(
        self,
        *,
        unit: UnitKind,
        model: str,
        sequences: int,
        tokens: int,
        compute_s: float,
        failed: bool,
    ) -> None:
        """The device finished one unit of work."""

    def waited(self, *, seconds: float) -> None:
        """One text left the queue after so long."""

    def tokenised(self, *, texts: int, tokens: int, seconds: float) -> None:
        """Texts of one call became tokens. Called in the caller's context."""

    def served(self, texts: Sequence[Served]) -> None:
        """The texts of one call came back from the device. Called in the caller's context."""

    def attention_sampled(self, *, model: str, layer: int, instrument: str, value: float) -> None:
        """The mean over a layer's heads of what an instrument read from one live text."""
