"""Descriptors that are not what a product of tensor cores must be given."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

pytest.importorskip("triton")

from kernels.instructions.descriptors import wrong_descriptors

PRODUCT = "HGMMA.64x32x16.F32.BF16 R40, gdesc[UR4], RZ, !UPT"
OF_REGISTERS = "HGMMA.64x32x16.F32.BF16 R88, R24, gdesc[UR4].tnspB, RZ, !UPT"
SHARED_MEMORY = ("UMOV UR30, 0x400", "S2UR UR31, SR_CgaCtaId", "ULEA UR30, UR31, UR30, 0x18")
HIGH = 0x40000040


def wrong(*lines: str) -> dict[str, tuple[str, ...]]:
    """The registers that do not hold what they should, by the text of the product."""
    found = wrong_descriptors(disassembly((*SHARED_MEMORY, *lines)))
    return {product.text: product.registers for product in found}


def disassembly(lines: Sequence[str]) -> str:
    texts, address = [], 0
    for line in lines:
        if line.endswith(":"):
            texts.append(line)
            continue
        predicate, _, text = line.rpartition("| ")
        texts.append(f"        /*{address:04x}*/  {predicate:>8} {text} ;")
        address += 16
    return "\n".join(texts)


def low(register: int, at: int = 0x1000) -> tuple[str, ...]:
    """As ptxas computes the low word."""
    name = f"UR{register}"
    return (
        f"UIADD3 {name}, UR30, {at:#x}, URZ",
        f"USHF.R.U32.HI {name}, URZ, 0x4, {name}",
        f"USGXT.U32 {name}, {name}, 0xe",
    )


def high(register: int) -> str:
    return f"UMOV UR{register}, {HIGH:#x}"


BOTH = (*low(4), high(5), *low(6), high(7))


def test_a_product_of_two_descriptors() -> None:
    assert not wrong(*BOTH, PRODUCT)


def test_a_word_that_nothing_has_written() -> None:
    assert wrong(*low(4), high(5), *low(6), PRODUCT) == {PRODUCT: ("UR7",)}
    assert wrong(high(5), *low(6), high(7), PRODUCT) == {PRODUCT: ("UR4",)}


def test_a_product_of_registers_has_one_descriptor() -> None:
    assert wrong(OF_REGISTERS) == {OF_REGISTERS: ("UR6", "UR7")}
    assert not wrong(*low(6), high(7), OF_REGISTERS)


@pytest.mark.parametrize(
    "line",
    [
        "ULDC UR6, c[0x0][0x2dc]",
        "UIMAD.WIDE.U32 UR6, UR8, UR9, URZ",
        "UMOV UR6, UR30",  # an address, not shifted
        "UIADD3 UR6, UR4, UR6, URZ",  # a sum of two
        "R2UR UR6, R72",
        "@P0| S2UR UR6, SR_CTAID.X",
    ],
)
def test_a_register_that_holds_something_else_by_then(line: str) -> None:
    found = wrong(*BOTH, "LDS R72, [R3]", line, PRODUCT)
    assert "UR6" in found[PRODUCT]


def test_a_step_further_is_a_descriptor_still() -> None:
    single = ("UIADD3 UR6, UP0, UR4, 0x2, URZ", "UMOV UR9, URZ")
    assert not wrong(*BOTH, *single, f"UIADD3.X UR7, UR9, {HIGH:#x}, URZ, UP0, !UPT", PRODUCT)
    assert not wrong(*BOTH, "UIADD3.64 UR6, UR4, 0x3e, URZ", PRODUCT)
    difference = ("UMOV UR8, 0xfffffffe", "UMOV UR9, 0x7fffffdf", "UIADD3.64 UR6, UR4, -UR8, URZ")
    assert not wrong(*BOTH, *difference, PRODUCT)


def test_a_high_word_is_a_constant_and_not_zero() -> None:
    assert wrong(*BOTH, "UMOV UR7, URZ", PRODUCT) == {PRODUCT: ("UR7",)}
    carried = f"UIADD3.X UR7, UR4, {HIGH:#x}, URZ, UP0, !UPT"
    assert wrong(*BOTH, carried, PRODUCT) == {PRODUCT: ("UR7",)}


def test_words_may_be_kept_in_other_registers() -> None:
    kept = ("IMAD.U32 R72, RZ, RZ, UR6", "MOV R73, UR7")
    back = ("R2UR UR6, R72", "R2UR UR7, R73")
    assert not wrong(*BOTH, *kept, "ULDC.64 UR6, c[0x0][0x278]", *back, PRODUCT)
    load = "LDG.E.128 R72, desc[UR8][R2.64]"
    assert wrong(*BOTH, *kept, load, *back, PRODUCT) == {PRODUCT: ("UR6", "UR7")}


def test_words_may_be_swapped() -> None:
    swap = [f"ULOP3.LUT UR{into}, UR7, UR6, URZ, 0x3c, !UPT" for into in (7, 6, 7)]
    swapped = (*BOTH[:4], *low(7), high(6), *swap)
    assert not wrong(*swapped, PRODUCT)
    assert wrong(*swapped[:-1], PRODUCT) == {PRODUCT: ("UR7",)}
    assert wrong(*BOTH, *swap, PRODUCT) == {PRODUCT: ("UR6", "UR7")}


def test_words_may_be_kept_in_local_memory() -> None:
    stored = ("MOV R72, UR6", "MOV R73, UR7", "STL.64 [R1+0x70], R72", "CS2R R72, SRZ")
    back = ("R2UR UR6, R80", "R2UR UR7, R81")
    assert not wrong(*BOTH, *stored, "LDL.LU.64 R80, [R1+0x70]", *back, PRODUCT)
    assert wrong(*BOTH, *stored, "LDL.64 R80, [R1+0x78]", *back, PRODUCT)
    over = "STL [R1+0x74], R90"
    assert wrong(*BOTH, *stored, over, "LDL.64 R80, [R1+0x70]", *back, PRODUCT) == {
        PRODUCT: ("UR7",)
    }


def test_what_a_loop_writes_is_not_there_where_the_loop_is_skipped() -> None:
    loop = ("@!P4| BRA `(.L_x_3)", ".L_x_4:", *low(6), "@P4| BRA `(.L_x_4)", ".L_x_3:")
    assert wrong(*low(4), high(5), high(7), *loop, PRODUCT) == {PRODUCT: ("UR6",)}
    assert not wrong(*BOTH, *loop, PRODUCT)


def test_either_way_may_hold_another_descriptor() -> None:
    ways = ("@P0| BRA `(.L_x_1)", *low(6, at=0x2000), ".L_x_1:")
    assert not wrong(*BOTH, *ways, PRODUCT)
    other = ("@P0| BRA `(.L_x_1)", "ULDC UR6, c[0x0][0x2dc]", ".L_x_1:")
    assert wrong(*BOTH, *other, PRODUCT) == {PRODUCT: ("UR6",)}


def test_code_that_is_never_reached_is_not_judged() -> None:
    assert not wrong("EXIT", PRODUCT)
    assert wrong("@P0| EXIT", PRODUCT)
