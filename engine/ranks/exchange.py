"""What the ranks of a reading exchange, however the numbers travel."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Pending(Protocol):
    """An exchange under way."""

    def poll(self) -> Tensor | None:
        """Every rank's part, [ranks, ...]; None while parts are missing.

        Raises RankLost when a part will never come.
        """
        ...


class Exchange(Protocol):
    """The ranks of one reading, which all call the same methods in the same order."""

    def all_gather(self, part: Tensor) -> Pending:
        """Every rank's part, on every rank."""
        ...

    def gather(self, part: Tensor) -> Pending:
        """Every rank's part, on the first rank; the others receive an empty tensor."""
        ...
