"""python -m kernels.instructions: counts the instructions of every launch, and writes them down.

Compiling takes about a minute on one processor. Afterwards `python tools/write_docs.py` brings the
tables of kernels/README.md up to date.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

from kernels.instructions.compile import compile_kernel
from kernels.instructions.descriptors import wrong_descriptors
from kernels.instructions.floors import H100, Row, row_of
from kernels.instructions.forms import DTYPE
from kernels.instructions.launch import Launch
from kernels.instructions.launches import launches
from kernels.instructions.report import STORED
from kernels.instructions.sass import parse


def main() -> None:
    options = parse_arguments()
    rows = []
    for row in count(options.names):
        print(json.dumps(row.stored()) if options.json else line(row), flush=True)
        rows.append(row.stored())
    if options.write:
        content = {"triton": version("triton"), "device": vars(H100), "rows": rows}
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m kernels.instructions", description=__doc__)
    parser.add_argument("names", nargs="*", help="only launches with one of these in their names")
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each")
    parser.add_argument("--write", action="store_true", help="store the counts of every launch")
    parser.add_argument("--out", type=Path, default=STORED)
    options = parser.parse_args()
    if os.environ.get("TRITON_INTERPRET") == "1":
        parser.error("TRITON_INTERPRET is set: interpreted kernels cannot be compiled")
    if options.write and options.names:
        parser.error("--write stores every launch, so it takes no names")
    return options


def count(names: Sequence[str] = ()) -> Iterator[Row]:
    for launch in launches():
        if not names or any(name in launch.name for name in names):
            yield count_launch(launch)


def count_launch(launch: Launch) -> Row:
    compiled = compile_kernel(launch.kernel, launch.constants, DTYPE)
    disassembly = compiled.disassembly()
    if wrong := wrong_descriptors(disassembly):
        raise ValueError(f"{launch.name} multiplies what it should not; at {wrong[0]}")
    counts = parse(disassembly).count(launch.rounds, launch.skipped, launch.once)
    row = row_of(launch.part, launch.form, counts, compiled.usage, launch.tokens, launch.bytes)
    if row.exponentials < launch.scores:
        raise ValueError(
            f"{row.name}: {row.exponentials} exponentials for {launch.scores} scores a token: "
            "a loop or a branch has been read wrongly"
        )
    return row


def line(row: Row) -> str:
    return (
        f"{row.name:52} {row.instructions:8.1f} instructions {row.exponentials:7.1f} exponentials "
        f"{row.registers} registers {row.stack_bytes} stack {row.resident_warps} warps "
        f"{row.floor_ps:6.1f} ps by {row.limit}, bytes {row.bytes_ps:.1f}"
    )


if __name__ == "__main__":
    main()
