"""The instructions that the compiler makes of the kernels, against those that are stored."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from kernels.instructions import report

pytest.importorskip("triton")

sass = pytest.importorskip("kernels.instructions.sass")
ROOT = Path(__file__).parents[2]
GROWTH = 1.05
AMOUNTS = ("instructions", "exponentials", "tensor_flops")
REPRESENTATIVE = (
    "state, D 64",
    "output, D 32, maps, sinks, gate, blocks of 512",
)
LINE = "/*{:04x}*/ {} ;"


def counted(*names: str, cache: Path) -> dict[str, dict[str, Any]]:
    """In a process of its own: one whose kernels are interpreted cannot compile them."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    run = subprocess.run(
        [sys.executable, "-m", "kernels.instructions", "--json", *names],
        cwd=ROOT,
        env=environment | {"TRITON_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    return {row["name"]: row for row in map(json.loads, run.stdout.splitlines())}


def grown(found: Mapping[str, report.Stored], stored: Mapping[str, Any]) -> list[str]:
    return [
        f"{name}: {row[amount]} {amount}, stored {stored[name][amount]}"
        for name, row in found.items()
        for amount in AMOUNTS
        if row[amount] > GROWTH * stored[name][amount]
    ]


def stored_rows() -> dict[str, Any]:
    stored = report.read(report.STORED)
    if stored["triton"] != version("triton"):
        pytest.skip(f"counted with Triton {stored['triton']}; another compiler, other counts")
    return report.rows_by_name(stored)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_no_representative_launch_has_grown(tmp_path: Path) -> None:
    stored = stored_rows()
    found = counted(*REPRESENTATIVE, cache=tmp_path)
    assert found.keys() >= set(REPRESENTATIVE)
    assert not grown(found, stored)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_launch_has_grown(tmp_path: Path) -> None:
    stored = stored_rows()
    found = counted(cache=tmp_path)
    assert found.keys() == stored.keys()
    assert not grown(found, stored)


def test_the_stored_counts_are_of_the_pinned_compiler() -> None:
    """Otherwise the tests above would be skipped wherever the pins are installed."""
    pins = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    assert f"triton=={report.read(report.STORED)['triton']}" in pins


def test_the_forward_issues_little_more_than_its_bytes_and_exponentials_take() -> None:
    for row in report.read(report.STORED)["rows"]:
        if row["part"] in ("state", "merge of groups", "merge", "output", "tile"):
            needed = max(row["bytes_ps"], row["exponentials_ps"])
            assert row["issue_ps"] <= 1.3 * needed, row["name"]


def test_growth_is_noticed() -> None:
    stored = report.rows_by_name(report.read(report.STORED))
    name = REPRESENTATIVE[0]
    larger = {**stored[name], "exponentials": 1.06 * stored[name]["exponentials"]}
    assert len(grown({name: larger}, stored)) == 1
    assert not grown({name: stored[name]}, stored)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "kernel.py"
    lines = ("x = 1", "for i_n in range(8):", "    x += 1", "if x > 1:", "    x = 0", "else:")
    path.write_text("\n".join((*lines, "    x = 2", "")))
    return path


def disassembly(source: Path, *lines: tuple[int, str]) -> str:
    """Each instruction with its line of the source; a label has none."""
    texts = []
    for address, (line, text) in enumerate(lines):
        texts.append(f'\t//## File "{source}", line {line}')
        texts.append(text if text.endswith(":") else "        " + LINE.format(16 * address, text))
    return "\n".join(texts)


def test_loops_count_by_their_rounds_and_exponentials_by_name(source: Path) -> None:
    program = sass.parse(
        disassembly(
            source,
            (1, "MOV R0, R1"),
            (2, ".L_x_0:"),
            (3, "MUFU.EX2 R2, R2"),
            (3, "HGMMA.64x32x16.F32.BF16 R24, R4, gdesc[UR4], R24"),
            (3, "HMMA.1688.F32.TF32 R24, R4, R8, R24"),
            (2, "@!P0 BRA `(.L_x_0)"),
            (5, "EXIT"),
            (5, ".L_x_1:"),
            (5, "BRA `(.L_x_1)"),
            (5, "NOP"),
        )
    )
    counts = program.count({"i_n": 8})
    assert (counts.instructions, counts.exponentials) == (1 + 4 * 8 + 1, 8)
    assert counts.tensor_instructions == 16
    assert counts.tensor_flops == 8 * (2 * 64 * 32 * 16 / 4 + 2 * (2 * 16 * 8 * 8))


@pytest.mark.parametrize(
    ("inside", "expected"), [("x = 0", 3), ("x = 2", 4)], ids=["the first side", "the second"]
)
def test_a_body_that_is_not_entered_does_not_count(
    source: Path, inside: str, expected: int
) -> None:
    program = sass.parse(
        disassembly(
            source,
            (4, "@P0 BRA `(.L_x_0)"),
            (5, "FADD R0, R0, R0"),
            (5, "BRA `(.L_x_1)"),
            (7, ".L_x_0:"),
            (7, "FADD R0, R0, R1"),
            (7, ".L_x_1:"),
            (7, "EXIT"),
        )
    )
    assert program.count({}).instructions == 5
    assert program.count({}, [sass.Body(inside)]).instructions == expected
    assert program.count({}, [sass.Body(inside, "if x > 1:")]).instructions == expected
    with pytest.raises(LookupError, match="no branch"):
        program.count({}, [sass.Body(inside, "if x > 2:")])


def test_a_subroutine_counts_where_it_is_always_called(source: Path) -> None:
    straight = [(1, "FADD R0, R0, R0")] * 20
    after = [(1, "EXIT"), (1, "$divide:"), (1, "FMUL R0, R0, R0"), (1, "RET.REL.NODEC R2 `(k)")]
    call = (1, "CALL.REL.NOINC `($divide)")
    always = sass.parse(disassembly(source, *straight, call, *after))
    assert always.count({}).instructions == 20 + 1 + 1 + 2
    branch = (1, "@P0 BRA `(.L_x_0)")
    seldom = sass.parse(disassembly(source, branch, call, (1, ".L_x_0:"), *straight, *after))
    assert seldom.count({}).instructions == 1 + 20 + 1
