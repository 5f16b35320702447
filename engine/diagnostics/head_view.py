"""What instruments look at: the heads of one layer reading one document, and the layer's input."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from engine.errors import InvalidInput
from engine.steps import Steps, computed_once
from engine.types import Attention

HeadMap: TypeAlias = tuple[Tensor | None, Tensor]
"""weight [H, D, D], None for the identity, and bias [H, D]"""

NON_FINITE = "non_finite"
"""The code of the error about queries or keys that are not numbers."""

_TOKENS_A_TILE = 4_096
_STATES_A_STEP = 1_024
_LLN_KINDS = ("lln", "lln_diag")
_BLOCK_KINDS = ("block_diagonal", "lln_diag")


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadView:
    """The heads of one layer reading one document, with the layer's frozen parameters.

    The code that runs the encoder fills it. Parameters that the kind of attention does not have
    keep their defaults. Most instruments need queries and keys alone; those that follow what a
    head adds to the states, or what tokens it attends to, list `v`, `x`, `out` and `token_kinds`
    in their `needs`.
    """

    q: Tensor  # [T, H, D]
    k: Tensor  # [T, H, D]
    attention: Attention
    alpha: Tensor | None = None  # [H]
    beta: Tensor | None = None  # [H]
    mix: Tensor | None = None  # [H], or [T, H] for a gate per token; LLN's share of LLN+Diag
    block_size: int = 64
    num_sinks: tuple[int, int] = (0, 0)  # first, last
    q_map: HeadMap | None = None
    k_map: HeadMap | None = None
    v: Tensor | None = None  # [T, H, D]
    x: Tensor | None = None  # [T, W] the states the layer reads
    out: Tensor | None = None  # [H, D, W] each head's rows of the output projection
    token_kinds: Tensor | None = None  # [T] word, special token or delimiter; see head_kind.py

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
        """Blocks of the sequence, the last one perhaps short; 1 for kinds without blocks."""
        return -(-self.num_tokens // self.block_size) if self.has_blocks else 1

    @property
    def sinks(self) -> list[int]:
        """The positions that every block sees besides its own."""
        first, last = self.num_sinks
        length = self.num_tokens
        return sorted({*range(min(first, length)), *range(max(length - last, 0), length)})

    def lln_share(self) -> Tensor:
        """LLN's share of every row of a kind with LLN: [H, N] in float64."""
        assert self.has_channels, "this kind of attention has no LLN branch"
        if self.attention == "lln":
            mix = torch.ones(1, dtype=torch.float64, device=self.q.device)
        else:
            assert self.mix is not None, "checked by the view"
            mix = self.mix.to(self.q.device, torch.float64)
        return mix.expand(self.num_tokens, self.num_heads).t()

    def only(self, heads: Sequence[int]) -> HeadView:
        """The same view of some heads; neighbours are not copied."""
        if list(heads) == list(range(self.num_heads)):
            return self
        index = _slice_of(heads)
        return replace(
            self,
            q=self.q[:, index],
            k=self.k[:, index],
            alpha=_pick(self.alpha, index),
            beta=_pick(self.beta, index),
            mix=_pick(self.mix, index),
            q_map=_pick_map(self.q_map, index),
            k_map=_pick_map(self.k_map, index),
            v=None if self.v is None else self.v[:, index],
            out=None if self.out is None else self.out[index],
        )


def _check_rows(q: Tensor, k: Tensor) -> None:
    if q.dim() != 3 or q.shape != k.shape or 0 in q.shape:
        raise InvalidInput(
            f"q and k must be (T, H, D) alike and not empty, "
            f"got {tuple(q.shape)} and {tuple(k.shape)}",
            param="q",
        )
    if not (_is_finite(q) and _is_finite(k)):
        raise InvalidInput("queries or keys are not finite", code=NON_FINITE, param="q")


def _is_finite(x: Tensor) -> bool:
    """By its extremes, of which a NaN is one: every number by itself would take as much memory."""
    return bool(torch.isfinite(torch.stack(x.aminmax())).all().item())


def _slice_of(heads: Sequence[int]) -> slice | list[int]:
    first, count = heads[0], len(heads)
    if list(heads) == list(range(first, first + count)):
        return slice(first, first + count)
    return list(heads)


def _pick(parameter: Tensor | None, heads: slice | list[int]) -> Tensor | None:
    return None if parameter is None else parameter[..., heads]


def _pick_map(head_map: HeadMap | None, heads: slice | list[int]) -> HeadMap | None:
    if head_map is None:
        return None
    weight, bias = head_map
    return None if weight is None else weight[heads], bias[heads]


def token_tiles(num_tokens: int) -> Iterator[slice]:
    """Few enough tokens at a time that intermediate results stay in cache.

    For a long text, allocating and freeing an array of its length takes longer than computing it.
    """
    for start in range(0, num_tokens, _TOKENS_A_TILE):
        yield slice(start, min(start + _TOKENS_A_TILE, num_tokens))


class LayerInput:
    """The states that a layer reads. All of its heads share what is computed from them."""

    def __init__(self, x: Tensor, dtype: torch.dtype) -> None:
        self.x = x  # [T, W]
        self.dtype = dtype

    def prepare(self) -> Steps[None]:
        """Compute everything before heads on several threads use it."""
        yield from self.mean_square()
        yield from self.gram()
        yield from self.points()

    @computed_once
    def gram(self) -> Steps[Tensor]:
        """X^T X: [1, W, W] in float64."""
        gram = self.x.new_zeros(self.x.shape[1], self.x.shape[1], dtype=torch.float64)
        for part in torch.split(self.x, _STATES_A_STEP):
            part = part.to(self.dtype)
            gram += part.mT @ part
            yield
        return gram.unsqueeze(0)

    @computed_once
    def mean_square(self) -> Steps[Tensor]:
        """The mean squared length of a token's state: []."""
        yield
        parts = [part.double().square().sum() for part in torch.split(self.x, _STATES_A_STEP)]
        return torch.stack(parts).sum() / len(self.x)

    @computed_once
    def points(self) -> Steps[Tensor]:
        """The states as `with_squares` returns them: [1, T, W + 1]."""
        yield
        return with_squares(self.x.unsqueeze(0)).to(self.dtype)


def with_squares(points: Tensor) -> Tensor:
    """Points [..., T, W] less their mean, which no spread depends on, with the square of their
    length as one column more: [..., T, W + 1]."""
    centred = points - points.mean(-2, keepdim=True)
    return torch.cat([centred, centred.square().sum(-1, keepdim=True)], dim=-1)
