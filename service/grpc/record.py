"""What its servicer tells of the current call, for the log."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(eq=False)
class CallRecord:
    """Empty where a method has no model or reads no text."""

    model: str | None = None
    tokens: int | None = None

    def add(self, model: str, tokens: int) -> None:
        """A call may bring many texts, one after the other."""
        self.model = model
        self.tokens = (self.tokens or 0) + tokens


current_record: ContextVar[CallRecord] = ContextVar("current_record")
"""Of the call that a task belongs to; the tasks that it starts have the same."""
