"""Long work on the device that says where something else may run in between."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias, TypeVar

T = TypeVar("T")


class Pause:
    """Yielded between two steps of some tens of milliseconds."""


PAUSE = Pause()

InSteps: TypeAlias = Generator[Pause, None, T]
"""Work that pauses and returns a T."""
