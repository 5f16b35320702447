"""What registers hold, as far as descriptors of tensor-core operands need it.

A descriptor has two words. The low one is an address in shared memory, shifted right by four bits
and cut to fourteen, plus a few steps; the high one is a constant. Both are computed in uniform
registers, or in others and copied.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum, auto
from typing import NamedTuple

from kernels.instructions.flow import Step

PREDICATE = re.compile(r"!?U?P(?:\d|T)$")
REGISTER = re.compile(r"U?R\d+$")
REGISTERS = re.compile(r"\bU?R\d+\b")
STACK = re.compile(r"\[R1(?:\+(0x[0-9a-f]+))?\]")
NUMBER = re.compile(r"-?0x[0-9a-f]+$")
WORD = 0xFFFFFFFF
WITHOUT_RESULT = ("ST", "RED", "BAR", "EXIT", "BRA", "LDGSTS", "MEMBAR", "FENCE", "WARP")
TENSOR = re.compile(r"HGMMA\.64x(\d+)x")
RESULTS_OF_TWO = ("64", "WIDE")
BASE_SHIFT, ADDRESS_SHIFT, ADDRESS_BITS, ADDRESS_MASK = "0x18", "0x4", "0xe", "0x3fff"
OR, EXCLUSIVE_OR = "0xfc", "0x3c"
"""Truth tables of a LOP3's first two operands."""


class Kind(Enum):
    CONSTANT = auto()
    ADDRESS = auto()  # in shared memory
    SHIFTED = auto()  # such an address, right by four bits
    DESCRIPTOR = auto()  # the low word of a descriptor
    OTHER = auto()


class Value(NamedTuple):
    kind: Kind
    number: int | None = None  # of a constant; None where ways differ
    mixed: tuple[Value, Value] | None = None  # what an exclusive or is of


OTHER = Value(Kind.OTHER)
ZERO = Value(Kind.CONSTANT, 0)
Values = dict[str, Value]
"""Values by register. An absent one has not been written on every path."""


def merge(one: Values, other: Values) -> Values:
    return {name: _either(one[name], other[name]) for name in one.keys() & other.keys()}


def _either(one: Value, other: Value) -> Value:
    if one == other:
        return one
    return Value(one.kind) if one.kind == other.kind else OTHER


def after(step: Step, values: Values) -> Values:
    written = _written(step, values)
    if not written:
        return values
    changed = values | written
    # What is written in some threads or cases only holds either value.
    return merge(values, changed) if step.is_conditional else changed


def _written(step: Step, values: Values) -> Values:
    if found := STACK.search(step.operands):
        return _through_stack(step, int(found[1] or "0x0", 16), values)
    operands = [text.strip().removesuffix(".reuse") for text in step.operands.split(",")]
    while operands and PREDICATE.match(operands[0]):
        operands.pop(0)
    if not operands or not REGISTER.match(operands[0]) or step.name.startswith(WITHOUT_RESULT):
        return {}
    first, *sources = (text for text in operands if not PREDICATE.match(text))
    if step.name.startswith("UIADD3.64"):
        return _sum_of_pairs(first, sources, values)
    count = num_results(step.name)
    if count > 1:
        return dict.fromkeys(registers_from(first, count), OTHER)
    return {first: _result(step.name, sources, values)}


def _through_stack(step: Step, offset: int, values: Values) -> Values:
    """Where registers do not suffice, words are kept in local memory, four bytes each."""
    found = REGISTERS.findall(STACK.sub("", step.operands))
    if not found or not step.name.startswith(("STL", "LDL")):
        return {}
    count = num_words(step.name)
    registers = registers_from(found[0], count)
    slots = [f"stack {offset + 4 * word}" for word in range(count)]
    into, out_of = (slots, registers) if step.name.startswith("STL") else (registers, slots)
    return {name: values.get(source, OTHER) for name, source in zip(into, out_of, strict=True)}


def _result(name: str, sources: Sequence[str], values: Values) -> Value:
    given = [_value(source, values) for source in sources]
    if name in ("UMOV", "MOV", "R2UR"):
        return given[0]
    if name.startswith("IMAD") and list(sources[:2]) == ["RZ", "RZ"]:  # a copy
        return given[2]
    if name in ("ULEA", "LEA") and sources[-1] == BASE_SHIFT:
        return Value(Kind.ADDRESS)
    if "SHF.R.U32" in name and ADDRESS_SHIFT in sources:
        return _if_among(given, Kind.ADDRESS, Value(Kind.SHIFTED))
    if "SGXT.U32" in name and sources[1:] == [ADDRESS_BITS]:
        return _if_among(given, Kind.SHIFTED, Value(Kind.DESCRIPTOR))
    if name.startswith(("LOP3", "ULOP3")) and ADDRESS_MASK in sources:
        return Value(Kind.DESCRIPTOR)  # the shift is in one instruction with others, not followed
    if name.startswith(("LOP3", "ULOP3")) and OR in sources:
        return _if_among(given, Kind.DESCRIPTOR, Value(Kind.DESCRIPTOR))
    if name.startswith(("LOP3", "ULOP3")) and EXCLUSIVE_OR in sources:
        return _exclusive_or(given[0], given[1])
    if name.startswith(("UIADD3", "IADD3", "VIADD")):
        return _sum(given)
    if name in ("ULEA", "LEA", "UIMAD"):
        return _if_among(given, Kind.ADDRESS, Value(Kind.ADDRESS))
    return OTHER


def _if_among(given: Sequence[Value], kind: Kind, result: Value) -> Value:
    return result if any(value.kind == kind for value in given) else OTHER


def _exclusive_or(one: Value, other: Value) -> Value:
    """Three of these swap two registers."""
    for mixed, known in ((one, other), (other, one)):
        if mixed.mixed and known in mixed.mixed:
            first, second = mixed.mixed
            return second if known == first else first
    return Value(Kind.OTHER, mixed=(one, other))


def _sum(given: Sequence[Value]) -> Value:
    others = [value for value in given if value.kind != Kind.CONSTANT]
    if not others:
        numbers = [value.number for value in given if value.number is not None]
        whole = len(numbers) == len(given)
        return Value(Kind.CONSTANT, sum(numbers) & WORD if whole else None)
    if any(value.kind == Kind.ADDRESS for value in others):
        return Value(Kind.ADDRESS)
    return others[0] if len(others) == 1 else OTHER


def _sum_of_pairs(first: str, sources: Sequence[str], values: Values) -> Values:
    pairs = [_pair(source, values) for source in sources if source != "URZ"]
    low, high = (_sum([pair[word] for pair in pairs]) for word in (0, 1))
    return dict(zip(registers_from(first, 2), (low, high), strict=True))


def _pair(source: str, values: Values) -> tuple[Value, Value]:
    """Values of both words; the carry from one to the other is not followed."""
    if NUMBER.match(source):
        number = int(source, 16)
        return Value(Kind.CONSTANT, number & WORD), Value(Kind.CONSTANT, number >> 32 & WORD)
    low, high = (values.get(name, OTHER) for name in registers_from(source.removeprefix("-"), 2))
    return (_negative(low), _negative(high)) if source.startswith("-") else (low, high)


def _value(source: str, values: Values) -> Value:
    if source in ("URZ", "RZ"):
        return ZERO
    if NUMBER.match(source):
        return Value(Kind.CONSTANT, int(source, 16) & WORD)
    if source.startswith("-"):
        return _negative(values.get(source[1:], OTHER))
    return values.get(source, OTHER)


def _negative(value: Value) -> Value:
    """Only its being a constant counts, since nothing else is subtracted."""
    return Value(Kind.CONSTANT) if value.kind == Kind.CONSTANT else OTHER


def registers_from(first: str, count: int) -> list[str]:
    kind = first.rstrip("0123456789")
    number = int(first.removeprefix(kind))
    return [f"{kind}{number + offset}" for offset in range(count)]


def num_words(name: str) -> int:
    """How many registers a load or a store moves."""
    return next((count for part, count in ((".128", 4), (".64", 2)) if part in name), 1)


def num_results(name: str) -> int:
    """How many registers an instruction writes."""
    if found := TENSOR.match(name):
        return int(found[1]) // 2
    if ".128" in name or name.startswith(("HMMA", "IMMA")) or name.endswith("M88.4"):
        return 4
    is_pair = any(part in name.split(".") for part in RESULTS_OF_TWO)
    return 2 if name == "CS2R" or is_pair or name.endswith("M88.2") else 1
