"""Machine code as steps, and what is known before each of them, whichever way led there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from kernels.instructions.sass import INSTRUCTION, LABEL, TARGET

Known = TypeVar("Known")


@dataclass(frozen=True)
class Step:
    """One instruction: where it is, what it does, where it leads."""

    address: str
    text: str
    is_conditional: bool
    target: str | None  # of a branch

    @property
    def name(self) -> str:
        return self.text.partition(" ")[0]

    @property
    def operands(self) -> str:
        return self.text.partition(" ")[2].strip()

    @property
    def goes_on(self) -> bool:
        """Whether it continues to the next instruction, at least sometimes."""
        ends = self.name.startswith(("EXIT", "RET")) or self.target is not None
        return self.is_conditional or not ends


def steps_of(disassembly: str) -> tuple[list[Step], dict[str, int]]:
    """And the step that follows each label."""
    steps: list[Step] = []
    labels: dict[str, int] = {}
    for line in disassembly.splitlines():
        if found := LABEL.match(line):
            labels[found[1]] = len(steps)
        elif found := INSTRUCTION.match(line):
            steps.append(_step(found[1], bool(found[2]), found[3]))
    return steps, labels


def _step(address: str, is_conditional: bool, text: str) -> Step:
    target = TARGET.search(text) if text.startswith("BRA") else None
    return Step(address, text, is_conditional, target[1] if target else None)


def known_before(
    steps: Sequence[Step],
    labels: dict[str, int],
    first: Known,
    after: Callable[[Step, Known], Known],
    merge: Callable[[Known, Known], Known],
) -> list[Known | None]:
    """Values before every step; None if no path leads to it. `merge` keeps what two paths share."""
    before: list[Known | None] = [None] * len(steps)
    waiting = [(0, first)]
    while waiting:
        at, found = waiting.pop()
        if at >= len(steps):
            continue
        known = before[at]
        merged = found if known is None else merge(known, found)
        if merged == known:
            continue
        before[at] = merged
        step = steps[at]
        left = after(step, merged)
        if step.target in labels:
            waiting.append((labels[step.target], left))
        if step.goes_on:
            waiting.append((at + 1, left))
    return before
