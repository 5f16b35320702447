"""What the suites have in common: where and how large, calls, and a row for each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kernels.attention import lln_diag_attention
from kernels.bench.clocks import clocks
from kernels.bench.floors import AIM, Ceiling, Work, floors
from kernels.bench.measure import Clock, Inputs, Run, Shape
from kernels.bench.report import Row, first_line

OURS = "lln_diag_attention"


@dataclass(frozen=True)
class Bench:
    """Where, how and how large."""

    clock: Clock
    ceiling: Ceiling
    dtype: torch.dtype
    large: bool  # sizes for a GPU; otherwise such as take a CPU seconds

    @property
    def device(self) -> torch.device:
        return self.clock.device

    def inputs(self, shape: Shape) -> Inputs:
        return Inputs(shape, self.dtype, self.device)

    def lengths(self, *large: int) -> tuple[int, ...]:
        return large if self.large else (256, 1024)

    def row(
        self,
        suite: str,
        name: str,
        shape: Shape,
        run: Run,
        *,
        work: Work | None = None,
        in_a_row: bool = False,
    ) -> Row:
        """Measures a call; an error goes into the row."""
        row = Row(
            suite=suite,
            name=name,
            tokens=shape.tokens,
            num_heads=shape.num_heads,
            head_dim=shape.head_dim,
            block_size=shape.block_size,
            dtype=str(self.dtype).removeprefix("torch."),
            floors=None if work is None else floors(shape, work, self.dtype, self.ceiling),
        )
        try:
            times = self.clock.times_in_a_row(run) if in_a_row else self.clock.times(run)
        except Exception as error:  # a peer fails in its own way
            return replace(row, note=f"failed: {first_line(error)}")
        found = clocks(self.device)
        return replace(
            row,
            seconds=times.median,
            p20_seconds=times.p20,
            p80_seconds=times.p80,
            clock_mhz=None if found is None else found.now_mhz,
        )

    def aimed(self, row: Row) -> Row:
        """Compares a row with the aim, on a GPU."""
        return against(row, row.fraction, AIM) if self.large else row


def against(row: Row, ratio: float | None, least: float | None) -> Row:
    if least is None or ratio is None:
        return replace(row, ratio=ratio)
    return replace(row, ratio=ratio, target=f">= {least:g}", met=ratio >= least)


def attend(inputs: Inputs, rows: tuple[Tensor, Tensor, Tensor], **form: Any) -> Tensor:
    """LLN+Diag in the plain form, except for the given arguments."""
    plain: dict[str, Any] = {
        **inputs.scales,
        "mix": inputs.mix,
        "cu_seqlens": inputs.packed,
        "block_size": inputs.shape.block_size,
    }
    return lln_diag_attention(*rows, **{**plain, **form})


def forward_run(inputs: Inputs, **form: Any) -> Run:
    return lambda: attend(inputs, inputs.rows, **form)


def both_run(inputs: Inputs, **form: Any) -> Run:
    """Forward and backward, to q, k and v."""

    def run() -> object:
        out = attend(inputs, inputs.leaves, **form)
        return torch.autograd.grad(out, inputs.leaves, inputs.grad)

    return run
