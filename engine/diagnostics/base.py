"""What an instrument is, how much work it may do, and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from engine.diagnostics.work import Work
from engine.errors import InvalidInput
from engine.types import Mode

if TYPE_CHECKING:
    from engine.diagnostics.heads import Heads

Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How exact a reading is to be. Where a limit makes it inexact, its error says by how much."""

    mode: Mode = "auto"
    """What costs N x N is read exactly up to max_exact_tokens ("auto"), always, or never."""

    max_exact_tokens: int = 1_024
    """In "auto", rows of longer texts are sampled wherever all of them would cost N x N."""

    sampled_rows: int = 96
    """So many rows, of all that there are."""

    max_float64_tokens: int = 4_096
    """Attention weights of longer texts are held in float32 unless all of their rows are read."""

    max_dense_tokens: int = 128
    """Spectra of texts up to here are read off the dense matrix; longer ones are iterated."""

    tolerance: float = 0.02
    """Iteration stops when the stated error of |lambda_2|, which is cautious, is below this."""

    max_basis: int = 384
    """Iteration also stops when its basis has this many vectors a head."""

    seed: int = 0
    """Of the sampled rows and of the iteration's first vectors: same text, same reading."""

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            if limit.name == "mode":
                continue
            if value < 0 or (value == 0 and limit.name != "seed"):
                raise InvalidInput(
                    f"{limit.name} must be positive, got {value}", param=limit.name, actual=value
                )

    def dtype_of(self, num_tokens: int) -> torch.dtype:
        """What attention weights are held in. Where rows are sampled or spectra iterated, float32's
        rounding (of weights whose logits are float64) is far below what else is off."""
        if num_tokens <= self.max_float64_tokens or self.num_rows(num_tokens) == num_tokens:
            return torch.float64
        return torch.float32

    def num_rows(self, num_tokens: int) -> int:
        """How many rows are read of a text wherever a row costs as much as the text is long."""
        limit = {"auto": self.max_exact_tokens, "exact": num_tokens, "sampled": 0}[self.mode]
        return num_tokens if num_tokens <= limit else min(num_tokens, self.sampled_rows)


@dataclass(frozen=True, kw_only=True, eq=False)
class Quantity:
    """Something read beside an instrument's value: a number or a list for every head."""

    values: Floats  # [H] or [H, ...], finite
    unit: str
    error: Floats | None = None  # like values, None where the method is exact up to rounding


@dataclass(frozen=True, kw_only=True, eq=False)
class Reading:
    """One instrument's answer for the heads of one layer."""

    values: Floats  # [H], finite
    error: Floats | None  # [H], None where the method is exact up to rounding
    method: str
    unit: str
    cost: str = ""
    """How the work grows with N tokens, heads of D, blocks of b."""
    beside: Mapping[str, Quantity] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Instrument:
    name: str
    unit: str
    description: str
    measure: Callable[[Heads], Work[Reading]]
    needs: tuple[Literal["v", "x", "out"], ...] = ()
    """What a view must hold besides queries and keys."""
    compares_heads: bool = False
    """Whether it looks at all heads of a layer together."""
    max_softmax_tokens: int | None = None
    """Longest text that a softmax layer is read by this instrument without being asked to."""
