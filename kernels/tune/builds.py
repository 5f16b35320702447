"""Which candidates may be timed at all: those whose products are given what they should be.

Each is built in a process of its own without a device, many at a time. The timing process then
finds the builds in Triton's cache.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from multiprocessing import get_context

import torch

from kernels.attention.custom_op import launch_errors
from kernels.attention.gpu import tiles
from kernels.attention.gpu.constants import forget_constants
from kernels.bench.host import no_driver
from kernels.instructions.compile import disassembly
from kernels.instructions.descriptors import wrong_descriptors
from kernels.tune.choices import Choice, Numbers, choices

FAMILY = "hopper"
"""What builds without a device are for: no other family has descriptors."""
TOKENS, NUM_HEADS = 2048, 2
"""Of the calls that build: no build depends on lengths or on the number of heads."""


def usable(choice: Choice, dtype: torch.dtype, processes: ProcessPoolExecutor) -> list[Numbers]:
    """The candidates that compile for Hopper, and whose descriptors are what they should be."""
    asked = partial(is_usable, choice.purpose, dtype)
    answers = processes.map(asked, choice.candidates)
    return [numbers for numbers, fine in zip(choice.candidates, answers, strict=True) if fine]


def building_processes() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(max(1, (os.cpu_count() or 1) - 1), get_context("spawn"))


def is_usable(purpose: str, dtype: torch.dtype, numbers: Numbers) -> bool:
    lines = tiles.table().setdefault(FAMILY, {})
    lines[purpose] = numbers
    try:
        return not any(wrong_descriptors(disassembly(cubin)) for cubin in _builds(purpose, dtype))
    except launch_errors():  # does not fit
        return False
    finally:
        lines.pop(purpose)


def _builds(purpose: str, dtype: torch.dtype) -> Sequence[bytes]:
    """The machine code of all that the choice's call launches."""
    found: list[bytes] = []
    with no_driver(loaded=found.append):
        # Kernels that this process has launched before are asked for again.
        forget_constants()
        _calls(dtype)[purpose].run()
    return found


@cache
def _calls(dtype: torch.dtype) -> dict[str, Choice]:
    every = choices(torch.device("cpu"), dtype, tokens=TOKENS, num_heads=NUM_HEADS)
    return {choice.purpose: choice for choice in every}
