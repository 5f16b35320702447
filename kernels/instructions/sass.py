"""Reads SASS and counts how often a warp issues each instruction.

A loop is what lies between a backward branch and its target; its source line names the variable
that counts its rounds, and the caller says how many there are. All other code counts once, on both
sides of a branch, except for bodies that the caller names and for the slow way to divide.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

LOCATION = re.compile(r'\s*//## File "([^"]+)", line (\d+)')
LABEL = re.compile(r"^([.$]\S+):")
INSTRUCTION = re.compile(r"\s+/\*([0-9a-f]+)\*/\s+(@!?U?P\w+\s+)?(.*?)\s*;")
"""Its address, the predicate that it may depend on, and its text."""
TARGET = re.compile(r"`\(([^)]+)\)")
LOOP = re.compile(r"\s*for (\w+) in ")
TENSOR = re.compile(r"(HGMMA|HMMA)\.(?:(\d+)x(\d+)x(\d+)|(16816|1688))")
WARPS_OF_A_GROUP = 4  # that share one HGMMA
MMA = {"16816": (16, 8, 16), "1688": (16, 8, 8)}
SLOW_BLOCK = 16
"""Instructions around a call that only a division of greater numbers than 32 bits makes, at most.

Around a call that is always made there are more.
"""


@dataclass(frozen=True)
class Instruction:
    text: str
    file: str
    line: int

    @property
    def name(self) -> str:
        return self.text.partition(" ")[0]

    @property
    def source(self) -> str:
        return linecache.getline(self.file, self.line)

    @property
    def target(self) -> str | None:
        found = TARGET.search(self.text)
        return found[1] if found else None

    @property
    def flops(self) -> float:
        """Operations of tensor cores for one warp, in 16 bits: tf32 takes twice the time."""
        found = TENSOR.match(self.name)
        if not found:
            return 0.0
        m, n, k = MMA[found[5]] if found[5] else tuple(map(int, found.group(2, 3, 4)))
        shared = WARPS_OF_A_GROUP if found[1] == "HGMMA" else 1
        return 2.0 * m * n * k / shared * (2 if "TF32" in self.name else 1)


class Body(NamedTuple):
    """A side of a branch that a launch does not enter, by lines of the source."""

    inside: str  # computed on this side
    condition: str | None = None  # of the branch; None for the nearest around `inside`


@dataclass(frozen=True)
class Loop:
    first: int
    last: int
    variable: str


@dataclass(frozen=True)
class Counts:
    """What one warp issues."""

    instructions: float
    exponentials: float
    tensor_instructions: float
    tensor_flops: float


@dataclass(frozen=True)
class Program:
    instructions: tuple[Instruction, ...]
    labels: Mapping[str, int]  # the instruction that follows each label

    @property
    def loops(self) -> Iterator[Loop]:
        for index, instruction in enumerate(self.instructions):
            start = self._jump(index)
            if start is None or start >= index or not instruction.name.startswith("BRA"):
                continue
            variable = LOOP.match(instruction.source)
            if variable:
                yield Loop(start, index, variable[1])

    def weights(
        self, rounds: Mapping[str, float], skipped: Sequence[Body], once: Sequence[Body] = ()
    ) -> list[float]:
        """How often a warp issues each instruction."""
        weights = [1.0] * len(self.instructions)
        for loop in self.loops:
            for index in range(loop.first, loop.last + 1):
                weights[index] *= rounds[loop.variable]
        for index in (index for body in once for index in self._inside(body)):
            weights[index] = 1.0
        bodies = [index for body in skipped for index in self._inside(body)]
        for index in (*bodies, *self._in_slow_divisions()):
            weights[index] = 0.0
        for name, start in self._subroutines():
            calls = sum(
                weight
                for weight, one in zip(weights, self.instructions, strict=True)
                if one.name.startswith("CALL") and one.target == name
            )
            for index in range(start, self._end_of_subroutine(start)):
                weights[index] = calls
        return weights

    def count(
        self,
        rounds: Mapping[str, float],
        skipped: Sequence[Body] = (),
        once: Sequence[Body] = (),
    ) -> Counts:
        weights = self.weights(rounds, skipped, once)
        issued = list(zip(weights, self.instructions, strict=True))
        return Counts(
            instructions=sum(weight for weight, _ in issued),
            exponentials=sum(w for w, one in issued if one.name.startswith("MUFU.EX2")),
            tensor_instructions=sum(w for w, one in issued if one.flops),
            tensor_flops=sum(w * one.flops for w, one in issued),
        )

    def _jump(self, index: int) -> int | None:
        target = self.instructions[index].target
        return None if target is None else self.labels.get(target)

    def _inside(self, body: Body) -> list[int]:
        found = [
            side
            for index, instruction in enumerate(self.instructions)
            if body.condition is None or instruction.source.strip() == body.condition
            for side in self._sides(index)
            if any(self.instructions[at].source.strip() == body.inside for at in side)
        ]
        if not found:
            raise LookupError(f"no branch around {body.inside!r}")
        sides = found if body.condition else [min(found, key=len)]
        return [index for side in sides for index in side]

    def _sides(self, index: int) -> Iterator[range]:
        """What lies between a branch and its target; and if that ends in a jump, what it passes."""
        end = self._jump(index)
        if end is None or end <= index:
            return
        yield range(index + 1, end)
        beyond = self._jump(end - 1)
        if beyond is not None and beyond > end:
            yield range(end, beyond)

    def _in_slow_divisions(self) -> Iterator[int]:
        edges = {0, len(self.instructions), *self.labels.values()}
        edges |= {i + 1 for i, one in enumerate(self.instructions) if one.name.startswith("BRA")}
        for start, end in pairwise(sorted(edges)):
            calls = any(one.name.startswith("CALL") for one in self.instructions[start:end])
            if calls and end - start <= SLOW_BLOCK:
                yield from range(start, end)

    def _subroutines(self) -> Iterator[tuple[str, int]]:
        return ((name, start) for name, start in self.labels.items() if name.startswith("$"))

    def _end_of_subroutine(self, start: int) -> int:
        later = (other for _, other in self._subroutines() if other > start)
        return min(later, default=len(self.instructions))


def parse(disassembly: str) -> Program:
    """The program of one kernel. What follows its last instruction only fills up memory."""
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    file, line = "", 0
    for text in disassembly.splitlines():
        if found := LOCATION.match(text):
            file, line = found[1], int(found[2])
        elif found := LABEL.match(text):
            labels[found[1]] = len(instructions)
        elif found := INSTRUCTION.match(text):
            instructions.append(Instruction(found[3], file, line))
    return Program(_without_filling(instructions), labels)


def _without_filling(instructions: list[Instruction]) -> tuple[Instruction, ...]:
    """The code ends with NOPs and a branch to itself."""
    end = len(instructions)
    while end and instructions[end - 1].name == "NOP":
        end -= 1
    if end and instructions[end - 1].name.startswith("BRA"):
        end -= 1
    return tuple(instructions[:end])
