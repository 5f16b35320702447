"""What instruments answer, and how exact the answer is to be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.attention_types import SAMPLED_ROWS, Mode
from engine.errors import InvalidInput

Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How exact a reading is to be. A reading that a limit makes inexact states its error."""

    mode: Mode = "auto"
    """Whether to read every row where that costs N x N: up to max_exact_tokens ("auto"), always
    ("exact") or never ("sampled")."""

    max_exact_tokens: int = 1_024
    """In "auto", longer texts are read by a sample of rows wherever all rows would cost N x N."""

    sampled_rows: int = SAMPLED_ROWS
    """Rows in a sample."""

    max_float64_tokens: int = 4_096
    """Attention weights of longer texts are float32, unless all of their rows are read."""

    max_dense_tokens: int = 128
    """Spectra of texts up to this length come from the dense matrix, of longer ones by iteration.
    """

    max_eigenvalue_tokens: int = 512
    """All eigenvalues of texts up to this length are computed: iteration would take as long."""

    max_spectrum_tokens: int = 4_096
    """In "exact", all singular values of texts up to this length are computed."""

    max_matrix_tokens: int = 2_048
    """Attention matrices of texts up to this length may be kept in memory, and so read at once."""

    tolerance: float = 0.02
    """Iteration stops when the stated error of |lambda_2|, a cautious one, is below this part of
    the spectral gap."""

    max_basis: int = 384
    """Iteration also stops when its basis has this many vectors a head."""

    seed: int = 0
    """Seed of the sampled rows and of the iteration's first vectors: same text, same reading."""

    quantiles: tuple[float, ...] = ()
    """Shares of the rows: instruments with a value for each row also say what value each share
    stays below."""

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            if limit.name in ("mode", "quantiles"):
                continue
            if value < 0 or (value == 0 and limit.name != "seed"):
                raise InvalidInput(
                    f"{limit.name} must be positive, got {value}", param=limit.name, actual=value
                )

    def dtype_of(self, num_tokens: int) -> torch.dtype:
        """The type of attention weights. Where rows are sampled or spectra iterated, the rounding
        of float32 (of weights whose logits are float64) is far below the other errors."""
        if num_tokens <= self.max_float64_tokens or self.num_rows(num_tokens) == num_tokens:
            return torch.float64
        return torch.float32

    def has_all_eigenvalues(self, num_tokens: int) -> bool:
        is_exact = self.mode == "exact" and num_tokens <= self.max_spectrum_tokens
        is_short = num_tokens <= min(self.max_eigenvalue_tokens, self.max_matrix_tokens)
        return is_exact or is_short

    def has_all_singular_values(self, num_tokens: int) -> bool:
        is_exact = self.mode == "exact" and num_tokens <= self.max_spectrum_tokens
        return is_exact or num_tokens <= self.max_dense_tokens

    def num_rows(self, num_tokens: int) -> int:
        """How many rows of a text are read wherever a row costs as much as the text is long."""
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
    """Further quantities of the same instrument, by name."""

    labels: tuple[str, ...] | None = None
    """What each head is called, [H], by an instrument that names heads."""


def floats(tensor: Tensor) -> Floats:
    """The values on the host, in float64."""
    array: Floats = tensor.double().cpu().numpy()
    return array


def error_floats(error: Tensor | None) -> Floats | None:
    return None if error is None else floats(error)
