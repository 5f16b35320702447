"""What every instrument looks at, how much work it may do, and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.errors import InvalidInput
from engine.types import Attention

HeadMap: TypeAlias = tuple[
    Tensor | None, Tensor
]  # weight [H, D, D], None the identity; bias [H, D]

_LLN_KINDS = ("lln", "lln_diag")
_BLOCK_KINDS = ("block_diagonal", "lln_diag")


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadView:
    """The heads of one layer reading one document, with the layer's frozen parameters.

    Filled by whoever runs the encoder. Parameters that the kind of attention does not have stay
    at their defaults.
    """

    q: Tensor  # [T, H, D]
    k: Tensor  # [T, H, D]
    attention: Attention
    alpha: Tensor | None = None  # [H]
    beta: Tensor | None = None  # [H]
    mix: Tensor | None = None  # [H], or [T, H] for a gate per token; the share of LLN
    block_size: int = 64
    num_sinks: tuple[int, int] = (0, 0)  # first, last
    q_map: HeadMap | None = None
    k_map: HeadMap | None = None

    def __post_init__(self) -> None:
        _check_rows(self.q, self.k)
        needed = {"lln": ("alpha", "beta"), "lln_diag": ("alpha", "beta", "mix")}
        for name in needed.get(self.attention, ()):
            if getattr(self, name) is None:
                raise InvalidInput(f"{self.attention} attention needs {name}", param=name)
        if self.block_size < 1:
            raise InvalidInput(
                f"block_size must be at least 1, got {self.block_size}",
                param="block_size",
                limit=1,
                actual=self.block_size,
            )

    @property
    def num_tokens(self) -> int:
        return self.q.shape[0]

    @property
    def num_heads(self) -> int:
        return self.q.shape[1]

    @property
    def head_size(self) -> int:
        return self.q.shape[2]

    @property
    def scale(self) -> float:
        return float(self.head_size**-0.5)

    @property
    def has_channels(self) -> bool:
        """Whether part of the attention is LLN."""
        return self.attention in _LLN_KINDS

    @property
    def has_blocks(self) -> bool:
        """Whether part of the attention is confined to blocks."""
        return self.attention in _BLOCK_KINDS

    @property
    def num_blocks(self) -> int:
        """Blocks of the sequence, the last one perhaps short; 1 where there are none."""
        return -(-self.num_tokens // self.block_size) if self.has_blocks else 1

    def visible_keys(self, block: int) -> Tensor:
        """The keys that Diag shows to every query of a block: its own and the sinks, each once."""
        first, last = self.num_sinks
        start, length = block * self.block_size, self.num_tokens
        keys = {
            *range(first),
            *range(start, start + self.block_size),
            *range(length - last, length),
        }
        seen = sorted(key for key in keys if 0 <= key < length)
        return torch.tensor(seen, device=self.q.device)

    def only(self, heads: Sequence[int]) -> HeadView:
        """The same view of some heads."""
        index = torch.as_tensor(heads, dtype=torch.long, device=self.q.device)
        return replace(
            self,
            q=self.q[:, index],
            k=self.k[:, index],
            alpha=_pick(self.alpha, index),
            beta=_pick(self.beta, index),
            mix=_pick(self.mix, index),
            q_map=_pick_map(self.q_map, index),
            k_map=_pick_map(self.k_map, index),
        )


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How exact a reading is to be. Where a limit makes it inexact, its error says by how much."""

    max_exact_tokens: int = 4_096
    """Row entropies of longer texts are sampled wherever all of them would cost N x N."""

    min_sampled_rows: int = 64
    """Rows are sampled until the work equals that of the longest exact text, but at least these."""

    max_dense_tokens: int = 256
    """Spectra of texts up to here are read off the dense matrix; longer ones are iterated."""

    tolerance: float = 1e-3
    """Iteration stops when the stated error of |lambda_2|, which is cautious, is below this."""

    max_basis: int = 384
    """Iteration also stops when its basis has this many vectors a head."""

    seed: int = 0
    """Of the sampled rows and of the iteration's first vectors: same text, same reading."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value < 0 or (value == 0 and field.name != "seed"):
                raise InvalidInput(
                    f"{field.name} must be positive, got {value}", param=field.name, actual=value
                )


@dataclass(frozen=True, kw_only=True, eq=False)
class Reading:
    """One instrument's answer for the heads of one layer."""

    values: NDArray[np.float64]  # [H], finite
    error: NDArray[np.float64] | None  # [H], None where the method is exact up to rounding
    method: str
    unit: str


@dataclass(frozen=True, kw_only=True)
class Instrument:
    name: str
    unit: str
    description: str
    measure: Callable[[HeadView, Effort], Reading]


def _check_rows(q: Tensor, k: Tensor) -> None:
    if q.dim() != 3 or q.shape != k.shape or 0 in q.shape:
        raise InvalidInput(
            f"q and k must be (T, H, D) alike and not empty, "
            f"got {tuple(q.shape)} and {tuple(k.shape)}",
            param="q",
        )
    if not bool((torch.isfinite(q).all() & torch.isfinite(k).all()).item()):
        raise InvalidInput("queries or keys are not finite", code="non_finite", param="q")


def _pick(parameter: Tensor | None, heads: Tensor) -> Tensor | None:
    return None if parameter is None else parameter[..., heads.to(parameter.device)]


def _pick_map(head_map: HeadMap | None, heads: Tensor) -> HeadMap | None:
    if head_map is None:
        return None
    weight, bias = head_map
    index = heads.to(bias.device)
    return None if weight is None else weight[index], bias[index]
