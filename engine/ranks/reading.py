"""A text that all ranks read, as the first rank sees it: it ends once a rank of it is lost."""

from __future__ import annotations

import time

from torch import Tensor

from engine.errors import LLNError, RankLost
from engine.ranks.exchange import Pending
from engine.ranks.group import Group

_REASON_S = 2.0
"""How long to wait for the reason of a broken connection."""


class Reading:
    """One text that the ranks read. It is the exchange that the first rank's part uses."""

    def __init__(self, number: int, group: Group) -> None:
        self.number = number
        self.failure: LLNError | None = None
        self._group = group

    def all_gather(self, part: Tensor) -> Pending:
        self.check()
        return _Watched(self, self._group.all_gather(part))

    def gather(self, part: Tensor) -> Pending:
        self.check()
        return _Watched(self, self._group.gather(part))

    def check(self) -> None:
        """Raises why the reading cannot go on, if it cannot."""
        if self.failure is not None:
            raise self.failure.for_caller()


class _Watched:
    """An exchange that fails as soon as a rank of its reading is known to be lost.

    A connection that breaks is often noticed before its reason: the reason has a moment to come.
    """

    def __init__(self, reading: Reading, pending: Pending) -> None:
        self._reading, self._pending = reading, pending
        self._broken: tuple[LLNError, float] | None = None

    def poll(self) -> Tensor | None:
        self._reading.check()
        if self._broken is not None:
            error, at = self._broken
            if time.monotonic() - at > _REASON_S:
                raise error
            return None
        try:
            return self._pending.poll()
        except RankLost as error:
            self._broken = error, time.monotonic()
            return None
