"""Registers that machine code reads before anything writes them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

pytest.importorskip("triton")

from kernels.instructions.descriptors import unwritten_reads


def missing(*lines: str) -> dict[str, tuple[str, ...]]:
    """The registers that are read too early, by the text of the instruction."""
    return {read.text: read.registers for read in unwritten_reads(disassembly(lines))}


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


PRODUCT = "HGMMA.64x32x16.F32.BF16 R40, gdesc[UR4], RZ, !UPT"
OF_REGISTERS = "HGMMA.64x32x16.F32.BF16 R88, R24, gdesc[UR4].tnspB, RZ, !UPT"


def test_a_descriptor_that_nothing_has_written() -> None:
    half = ("UMOV UR4, URZ", "UMOV UR5, 0x40000040", "R2UR UR6, R7")
    assert missing("S2R R7, SR_TID.X", *half, PRODUCT) == {PRODUCT: ("UR7",)}
    assert not missing("S2R R7, SR_TID.X", *half, "UMOV UR7, 0x40000040", PRODUCT)


def test_a_product_of_registers_has_one_descriptor() -> None:
    assert missing(OF_REGISTERS) == {OF_REGISTERS: ("UR6", "UR7")}
    assert not missing("ULDC.64 UR6, c[0x0][0x218]", OF_REGISTERS)


def test_sums_and_pairs() -> None:
    carried = "UIADD3 UR12, UP0, UR12, 0x2, URZ"
    assert missing(carried) == {carried: ("UR12",)}
    wide = "UIADD3.64 UR6, UR12, 0x3e, URZ"
    assert missing("UMOV UR12, URZ", wide) == {wide: ("UR13",)}
    assert not missing("UIMAD.WIDE.U32 UR12, URZ, 0x2, URZ", wide)


def test_what_a_loop_writes_is_not_there_where_the_loop_is_skipped() -> None:
    copied = "R2UR UR10, R192"
    loop = ("@!P4| BRA `(.L_x_3)", ".L_x_4:", "IMAD.U32 R192, RZ, RZ, 0x2", "@P4| BRA `(.L_x_4)")
    assert missing(*loop, ".L_x_3:", copied) == {copied: ("R192",)}
    assert not missing("IMAD.U32 R192, RZ, RZ, 0x1", *loop, ".L_x_3:", copied)


def test_results_of_several_registers() -> None:
    for load in ("LDS.64 R24, [R3]", "LDG.E.128 R24, desc[URZ][R2.64]", "CS2R R24, SRZ"):
        assert not missing(load, "R2UR UR4, R25"), load
    assert missing("LDS R24, [R3]", "R2UR UR4, R25")
    assert missing("STS [R24], R25", "R2UR UR4, R24")


def test_code_that_is_never_reached_is_not_judged() -> None:
    assert not missing("EXIT", PRODUCT)
    assert missing("@P0| EXIT", PRODUCT)
