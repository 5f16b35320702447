"""What tests that follow each other share, and what ends with the last of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Generic, TypeVar

Opened = TypeVar("Opened")


class Kept(Generic[Opened]):
    """Opened for the first test that asks for it; whoever knows the last one closes it."""

    def __init__(self, opening: Callable[[], AbstractContextManager[Opened]]) -> None:
        self._opening = opening
        self._open = ExitStack()
        self._found: list[Opened] = []

    def get(self) -> Opened:
        if not self._found:
            self._found.append(self._open.enter_context(self._opening()))
        return self._found[0]

    def close(self) -> None:
        self._found.clear()
        self._open.close()
