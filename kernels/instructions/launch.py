"""A launch whose instructions are counted, and the branches that it does not enter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kernels.attention.gpu.constants import Constants
from kernels.instructions.sass import Body


@dataclass(frozen=True)
class Launch:
    """One kernel as it is launched, and how often its loops go round."""

    part: str  # of an operation
    form: str
    kernel: Any
    constants: Constants
    tokens: float  # that a program answers for, of one head
    bytes: float  # that must move, a token and head
    rounds: Mapping[str, float] = field(default_factory=dict)  # by the loop's variable
    skipped: tuple[Body, ...] = ()
    once: tuple[Body, ...] = ()  # in one round of their loop
    scores: int = 0  # that a token has in all softmaxes: this many exponentials at least

    @property
    def name(self) -> str:
        return f"{self.part}, {self.form}"
