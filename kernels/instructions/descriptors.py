"""Finds uniform registers that machine code reads though nothing wrote them on the way there.

A wgmma finds its operands by descriptors in uniform registers. Where registers are short, ptxas
12.8 computes some descriptors from registers that nothing has set, or that are set only in a loop
which short sequences skip. Such a kernel compiles without a warning, and on a GPU it reads other
memory or stops with an illegal address. Nothing else sees that without a GPU: Triton's interpreter
runs no machine code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kernels.instructions.sass import INSTRUCTION, LABEL, TARGET

REGISTER = re.compile(r"(U?R)(\d+)\b")
UNIFORM_DESTINATION = re.compile(r"(?:!?U?P\w+, )?UR(\d+)(?:,|$)")
DESTINATION = re.compile(r"(?:U?P\w+, )*R(\d+)(?:\.reuse)?(?:,|$)")
DESCRIPTORS = re.compile(r"gdesc\[UR(\d+)\]")
WITHOUT_RESULT = ("ST", "RED", "BAR", "EXIT", "BRA", "LDGSTS", "MEMBAR", "FENCE", "WARP")
TENSOR = re.compile(r"HGMMA\.64x(\d+)x")
RESULTS_OF_TWO = ("64", "WIDE")


@dataclass(frozen=True)
class Step:
    """One instruction: where it is, what it needs to be written before, and what it writes."""

    address: str
    text: str
    reads: frozenset[str]
    writes: frozenset[str]
    target: str | None  # of a branch
    goes_on: bool  # to the next instruction, at least sometimes


@dataclass(frozen=True)
class Unwritten:
    """A read of registers that are not written on every way to it."""

    address: str
    text: str
    registers: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.address}: {self.text} reads {', '.join(self.registers)}"


def unwritten_reads(disassembly: str) -> list[Unwritten]:
    steps, labels = _parse(disassembly)
    written = _written_before(steps, labels)
    return [
        Unwritten(step.address, step.text, tuple(sorted(missing)))
        for step, before in zip(steps, written, strict=True)
        if before is not None and (missing := step.reads - before)
    ]


def _parse(disassembly: str) -> tuple[list[Step], dict[str, int]]:
    steps: list[Step] = []
    labels: dict[str, int] = {}
    for line in disassembly.splitlines():
        if found := LABEL.match(line):
            labels[found[1]] = len(steps)
        elif found := INSTRUCTION.match(line):
            steps.append(_step(found[1], bool(found[2]), found[3]))
    return steps, labels


def _step(address: str, is_conditional: bool, text: str) -> Step:
    name, _, operands = text.partition(" ")
    operands = operands.strip()
    target = TARGET.search(operands) if name.startswith("BRA") else None
    ends = name.startswith(("EXIT", "RET")) or target is not None
    return Step(
        address,
        text,
        frozenset(_reads(name, operands)),
        frozenset(_writes(name, operands)),
        target[1] if target else None,
        goes_on=is_conditional or not ends,
    )


def _reads(name: str, operands: str) -> Iterator[str]:
    """Uniform registers, and the registers that uniform ones are copied from."""
    sources = operands
    if found := UNIFORM_DESTINATION.match(operands):
        sources = operands[found.end() :]
    for kind, number in REGISTER.findall(DESCRIPTORS.sub("", sources)):
        if kind == "UR":
            yield f"UR{number}"
            if name.startswith("U") and ".64" in name:
                yield f"UR{int(number) + 1}"
        elif name.startswith("R2UR"):
            yield f"R{number}"
    if found := DESCRIPTORS.search(operands):
        first = int(found[1])
        # With its first operand in registers, a product has a descriptor of the second alone.
        alone = re.match(r"R\d+, R\d+,", operands) is not None
        yield from (f"UR{first + offset}" for offset in range(2 if alone else 0, 4))


def _writes(name: str, operands: str) -> Iterator[str]:
    if found := UNIFORM_DESTINATION.match(operands):
        yield from _from("UR", int(found[1]), 2 if _is_pair(name) else 1)
    elif not name.startswith(WITHOUT_RESULT) and (found := DESTINATION.match(operands)):
        yield from _from("R", int(found[1]), _results(name))


def _results(name: str) -> int:
    """How many registers an instruction writes."""
    if found := TENSOR.match(name):
        return int(found[1]) // 2
    if ".128" in name or name.startswith(("HMMA", "IMMA")) or name.endswith("M88.4"):
        return 4
    return 2 if name == "CS2R" or _is_pair(name) or name.endswith("M88.2") else 1


def _is_pair(name: str) -> bool:
    return any(part in name.split(".") for part in RESULTS_OF_TWO)


def _from(kind: str, first: int, count: int) -> Iterator[str]:
    return (f"{kind}{number}" for number in range(first, first + count))


def _written_before(steps: Sequence[Step], labels: dict[str, int]) -> list[frozenset[str] | None]:
    """What is written on every way to each instruction; None if there is no way."""
    before: list[frozenset[str] | None] = [None] * len(steps)
    waiting: list[tuple[int, frozenset[str]]] = [(0, frozenset())]
    while waiting:
        at, written = waiting.pop()
        if at >= len(steps):
            continue
        known = before[at]
        merged = written if known is None else known & written
        if merged == known:
            continue
        before[at] = merged
        step = steps[at]
        after = merged | step.writes
        if step.target in labels:
            waiting.append((labels[step.target], after))
        if step.goes_on:
            waiting.append((at + 1, after))
    return before
