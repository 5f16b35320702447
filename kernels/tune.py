"""python -m kernels.tune: measures tile sizes on this GPU and writes the fastest to tiles.json.

A choice is for a family of devices, a head size, a dtype and a block size, never for a length, so
serving never tunes. Without measured choices the defaults of attention/gpu/tiles.py hold.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from kernels.attention import softmax_attention
from kernels.attention.custom_op import launch_errors
from kernels.attention.gpu import tiles
from kernels.attention.gpu.constants import forget_constants
from kernels.bench.measure import Clock, Inputs, Run, Shape
from kernels.bench.report import facts_of
from kernels.bench.runs import both_run, forward_run

TOKENS, SOFTMAX_TOKENS, NUM_HEADS = 65536, 16384, 12
HEAD_DIMS = (32, 64, 128, 256)
BLOCK_SIZES = (64, 128, 256)
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
GAIN_WORTH_A_LINE = 0.98

Numbers = dict[str, int]


@dataclass(frozen=True)
class Choice:
    """One line of the table, its candidates, and the call that they are timed with."""

    purpose: str
    default: Numbers
    candidates: tuple[Numbers, ...]
    run: Run


def main() -> None:
    options = parse()
    if not torch.cuda.is_available():
        sys.exit("kernels.tune measures a GPU, and there is none here")
    device = torch.device("cuda")
    family = tiles.family_of(device)
    if family is None:
        known = ", ".join(tiles.FAMILIES.values())
        sys.exit(f"{torch.cuda.get_device_name()} is of no known family ({known})")
    clock = Clock(device, seconds_each=0.1)
    chosen = tiles.table().setdefault(family, {})
    for choice in choices(device, [getattr(torch, name) for name in options.dtypes]):
        decide(choice, chosen, clock.seconds)
        write(options.out, family, chosen, facts_of(device))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m kernels.tune", description=__doc__)
    names = [str(dtype).removeprefix("torch.") for dtype in DTYPES]
    parser.add_argument("--dtypes", nargs="+", choices=names, default=names)
    parser.add_argument("--out", type=Path, default=tiles.TABLE)
    return parser.parse_args()


def decide(choice: Choice, chosen: dict[str, Numbers], seconds: Callable[[Run], float]) -> None:
    """Writes the fastest candidate into the table, or no line where the default is as good."""

    def measured() -> float:
        forget_constants()
        return seconds(choice.run)

    chosen.pop(choice.purpose, None)
    best, best_seconds = None, GAIN_WORTH_A_LINE * measured()
    for candidate in choice.candidates:
        chosen[choice.purpose] = candidate
        try:
            found = measured()
        except launch_errors():  # does not fit the device
            continue
        if found < best_seconds:
            best, best_seconds = candidate, found
    if best is None:
        chosen.pop(choice.purpose, None)
    else:
        chosen[choice.purpose] = best
    forget_constants()
    print(f"{choice.purpose}: {best or 'default'}", flush=True)


def choices(device: torch.device, dtypes: list[torch.dtype]) -> Iterator[Choice]:
    for dtype, head_dim in itertools.product(dtypes, HEAD_DIMS):
        yield from _of_passes(device, dtype, head_dim)
        for block_size in BLOCK_SIZES:
            yield from _of_blocks(device, dtype, head_dim, block_size)


def _of_passes(device: torch.device, dtype: torch.dtype, head_dim: int) -> Iterator[Choice]:
    inputs = Inputs(Shape(TOKENS, NUM_HEADS, head_dim), dtype, device)
    state = asdict(tiles.state_tile(head_dim, dtype, weight=False))
    gradient = asdict(tiles.state_gradient_tile(head_dim, dtype, weight=False))
    warps = {"num_warps": (4, 8), "num_stages": (2, 3, 4)}
    steps = {"tokens": (32, 64, 128), **warps}
    softmax = asdict(tiles.softmax_tile(head_dim, dtype))
    of_softmax = {"queries": (32, 64, 128), "keys": (32, 64, 128), **warps}
    rows = Inputs(Shape(SOFTMAX_TOKENS, NUM_HEADS, head_dim), dtype, device)
    yield _choice(
        "softmax", head_dim, dtype, softmax, of_softmax, lambda: softmax_attention(*rows.rows)
    )
    yield _choice("state", head_dim, dtype, state, steps, forward_run(inputs))
    yield _choice("state gradient", head_dim, dtype, gradient, steps, both_run(inputs))


def _of_blocks(
    device: torch.device, dtype: torch.dtype, head_dim: int, block_size: int
) -> Iterator[Choice]:
    inputs = Inputs(Shape(TOKENS, NUM_HEADS, head_dim, block_size), dtype, device)
    settings: dict[str, Any] = {"weight": False, "block_size": block_size}
    output = asdict(tiles.output_tile(head_dim, dtype, **settings))
    rows = asdict(tiles.rows_gradient_tile(head_dim, dtype, **settings))
    forward = {"queries": (32, 64, 128), "num_warps": (4, 8), "num_stages": (1, 2, 3)}
    backward = {"rows": (32, 64), "num_warps": (4, 8), "num_stages": (1, 2)}
    yield _choice("output", head_dim, dtype, output, forward, forward_run(inputs), block_size)
    yield _choice("rows gradient", head_dim, dtype, rows, backward, both_run(inputs), block_size)


def _choice(
    tile: str,
    head_dim: int,
    dtype: torch.dtype,
    default: Numbers,
    steps: Mapping[str, tuple[int, ...]],
    run: Run,
    block_size: int | None = None,
) -> Choice:
    purpose = tiles.purpose(tile, head_dim, dtype, weight=False, block_size=block_size)
    combined = (
        dict(zip(steps, numbers, strict=True)) for numbers in itertools.product(*steps.values())
    )
    return Choice(purpose, default, tuple(default | numbers for numbers in combined), run)


def write(path: Path, family: str, chosen: Mapping[str, Numbers], facts: Mapping[str, Any]) -> None:
    """Replaces this family's lines and leaves those of others."""
    content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    measured_on = content.get("measured_on", {}) | {family: facts}
    tiles = content.get("tiles", {}) | {family: chosen}
    text = json.dumps({"measured_on": measured_on, "tiles": tiles}, indent=1)
    path.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
