"""Finds products whose operands' descriptors are not what descriptors are.

A wgmma finds its operands by descriptors in uniform registers. Where registers are short, ptxas
12.8 computes some descriptors from registers that nothing has set, that only a loop sets which
short sequences skip, or that hold something else by then. Such a kernel compiles without a warning,
and on a GPU it reads other memory or stops with an illegal address. Nothing else sees that without
a GPU: Triton's interpreter runs no machine code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from kernels.instructions.flow import Step, known_before, steps_of
from kernels.instructions.values import Kind, Value, Values, after, merge

DESCRIPTORS = re.compile(r"gdesc\[UR(\d+)\]")
OF_REGISTERS = re.compile(r"R\d+, R\d+,")
"""A product with its first operand in registers."""


@dataclass(frozen=True)
class WrongDescriptor:
    """A product, and the registers of its descriptors that do not hold what they should."""

    address: str
    text: str
    registers: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.address}: {self.text} is given {', '.join(self.registers)}"


def wrong_descriptors(disassembly: str) -> list[WrongDescriptor]:
    steps, labels = steps_of(disassembly)
    empty: Values = {}
    before = known_before(steps, labels, empty, after, merge)
    return [
        WrongDescriptor(step.address, step.text, wrong)
        for step, values in zip(steps, before, strict=True)
        if values is not None and (wrong := tuple(_wrong(step, values)))
    ]


def _wrong(step: Step, values: Values) -> Iterator[str]:
    found = DESCRIPTORS.search(step.operands)
    if not found:
        return
    first = int(found[1])
    # With its first operand in registers, a product has a descriptor of the second alone.
    starts = (first + 2,) if OF_REGISTERS.match(step.operands) else (first, first + 2)
    for start in starts:
        low, high = f"UR{start}", f"UR{start + 1}"
        if not _is(values.get(low), Kind.DESCRIPTOR):
            yield low
        if not _is(values.get(high), Kind.CONSTANT):
            yield high


def _is(value: Value | None, kind: Kind) -> bool:
    return value is not None and value.kind == kind and value.number != 0
