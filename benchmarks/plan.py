"""How thoroughly to measure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Plan:
    quick: bool = False
    """One turn for everything, and nothing that takes minutes."""
    repeats: int | None = None
    """Turns, in place of each suite's own number."""

    minutes: float = 30
    """How long the soak takes."""

    def turns(self, usual: int) -> int:
        return self.repeats or (1 if self.quick else usual)
