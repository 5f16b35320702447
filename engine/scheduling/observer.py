"""The engine's reports for measurements: a base class that ignores everything.

Methods are called from the device thread or the event loop. They must be quick and thread-safe.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from engine.scheduling.request import TimedResult, UnitKind


class EngineObserver:
    """Override what you want to measure."""

    def accepted(self, *, model: str, tokens: int) -> None:
        """One text was admitted."""

    def rejected(self, *, reason: str) -> None:
        """A call was refused; `reason` is the code of the error."""

    def truncated(self, *, model: str) -> None:
        """One text was truncated because its caller asked for it."""

    def cancelled(self, *, reason: Literal["caller_left", "deadline"]) -> None:
        """One admitted text left, before it ran or between two of its tiles."""

    def preempted(self) -> None:
        """A batch ran between two tiles of a text."""

    def recovered_from_oom(self) -> None:
        """Work that did not fit in memory was split, to be tried again."""

    def queue_changed(self, *, depth: int, tokens: int) -> None:
        """The numbers of texts and tokens that wait now."""

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
        """One text left the queue after this time."""

    def tokenised(self, *, texts: int, tokens: int, seconds: float) -> None:
        """Texts of one call became tokens: all of them, or a part of many. Called in the caller's
        context."""

    def served(self, results: Sequence[TimedResult[Any]]) -> None:
        """The texts of one call came back from the device. Called in the caller's context."""

    def ranks_changed(self, num_present: int) -> None:
        """Reports how many ranks can read a document together now, the first one included."""

    def rank_lost(self) -> None:
        """A rank ended, or said nothing for too long."""

    def attention_sampled(self, *, model: str, layer: int, instrument: str, value: float) -> None:
        """The mean over a layer's heads of what an instrument read from one live text."""
