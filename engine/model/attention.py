"""The attention of one layer: which kind, and the numbers it was calibrated with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor

from engine.block_size import LongBlock, beyond_a_block, block_of
from engine.model.activations import logistic
from engine.model.block_runs import AttendRun, BlockRun, attend_by_run
from engine.types import Attention
from kernels.attention import (
    LLNState,
    PackedSequences,
    TileSinks,
    block_diagonal_attention,
    block_diagonal_tile,
    lln_attention,
    lln_diag_attention,
    lln_diag_tile,
    lln_read,
    lln_state,
    sliding_window_attention,
    softmax_attention,
)
from kernels.attention.op import Map


@dataclass(frozen=True, kw_only=True)
class LLNParameters:
    """Frozen by calibration, so that a text's vector never depends on its neighbours."""

    alpha: Tensor  # [H]
    beta: Tensor  # [H]
    mix: Tensor  # [H]
    key_shift: Tensor  # [H, D] added to every key before LLN's exponential, as centring them wants
    block_size: int
    num_sinks: tuple[int, int]
    long_block: LongBlock | None = None

    # What training may add; None leaves it out, at no cost.
    query_map: Tensor | None = None  # [H, D, D] on the queries before LLN's exponential
    key_map: Tensor | None = None  # [H, D, D] and on the keys
    gate: Tensor | None = None  # [H, D] a token's share of LLN is sigmoid(gate . q + logit(mix))

    @property
    def q_map(self) -> Map | None:
        if self.query_map is None:
            return None
        return self.query_map, torch.zeros_like(self.key_shift)

    @property
    def k_map(self) -> Map:
        return self.key_map, self.key_shift

    def block_of(self, length: int) -> int:
        """The size of a block in a text of this length."""
        return block_of(length, self.block_size, self.long_block)

    def by_run(
        self, q: Tensor, k: Tensor, v: Tensor, packed: PackedSequences, attend: AttendRun
    ) -> Tensor:
        return attend_by_run(
            *(q, k, v, packed), usual=self.block_size, long=self.long_block, attend=attend
        )

    def shares(self, q: Tensor) -> Tensor:
        """LLN's share in each token's output: (H,), or (T, H) where tokens decide."""
        if self.gate is None:
            return self.mix
        # Not a product of matrices: one row at a time, those take ten times as long on a CPU.
        logits = (q * self.gate).sum(-1) + torch.logit(self.mix)
        return logistic(logits)

    def on(self, device: torch.device) -> LLNParameters:
        tensors: dict[str, Any] = {
            field.name: value.to(device)
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), Tensor)
        }
        return replace(self, **tensors)


@dataclass(frozen=True)
class Tile:
    """Some rows of a long sequence, and what their attention must know of all the others."""

    q: Tensor  # [n, H, D]
    k: Tensor  # [before + n + after, H, D]
    v: Tensor
    before: int  # rows of k and v that precede the queries', as far as the attention reaches
    length: int  # of the whole sequence
    state: LLNState | None
    sinks: TileSinks


class TiledAttention(Protocol):
    """Attention that can read a long sequence tile by tile."""

    def block_of(self, length: int) -> int:
        """The size of a block in a sequence of this length; tiles are whole blocks."""
        ...

    @property
    def num_sinks(self) -> tuple[int, int]:
        """Tokens at either end of the sequence whose keys and values every tile needs."""
        ...

    @property
    def reach(self) -> int:
        """Rows beyond either end of a tile whose keys and values it needs."""
        ...

    def state_of(self, k: Tensor, v: Tensor, length: int) -> LLNState | None:
        """What the sequence's state gains from these rows, for a sequence of this length."""
        ...

    def attend_tile(self, tile: Tile) -> Tensor:
        """[n, H, D]"""
        ...


@dataclass(frozen=True)
class SoftmaxAttention:
    kind: Attention = "softmax"

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, packed: PackedSequences) -> Tensor:
        return softmax_attention(q, k, v, cu_seqlens=packed)


@dataclass(frozen=True)
class SlidingWindowAttention:
    """Softmax over near keys alone, in the layers of a family that were trained so."""

    half_window: int
    kind: Literal["sliding_window"] = "sliding_window"

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, packed: PackedSequences) -> Tensor:
        return sliding_window_attention(q, k, v, half_window=self.half_window, cu_seqlens=packed)

    def block_of(self, length: int) -> int:
        return 1

    @property
    def num_sinks(self) -> tuple[int, int]:
        return (0, 0)

    @property
    def reach(self) -> int:
        return self.half_window

    def state_of(self, k: Tensor, v: Tensor, length: int) -> LLNState | None:
        return None

    def attend_tile(self, tile: Tile) -> Tensor:
        q, end = tile.k.new_zeros(tile.k.shape), tile.before + len(tile.q)
        q[tile.before : end] = tile.q
        attended = sliding_window_attention(q, tile.k, tile.v, half_window=self.half_window)
        return attended[tile.before : end]


@dataclass(frozen=True)
class LLNAttention:
    parameters: LLNParameters
    kind: Attention = "lln"

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, packed: PackedSequences) -> Tensor:
        lln = self.parameters
        return lln_attention(
            *(q, k, v),
            alpha=lln.alpha,
            beta=lln.beta,
            cu_seqlens=packed,
            q_map=lln.q_map,
            k_map=lln.k_map,
        )

    def block_of(self, length: int) -> int:
        return 1

    @property
    def reach(self) -> int:
        return 0

    @property
    def num_sinks(self) -> tuple[int, int]:
        return (0, 0)

    def state_of(self, k: Tensor, v: Tensor, length: int) -> LLNState | None:
        lln = self.parameters
        return lln_state(k, v, beta=lln.beta, k_map=lln.k_map)

    def attend_tile(self, tile: Tile) -> Tensor:
        assert tile.state is not None, "LLN reads nothing but its state"
        lln = self.parameters
        return lln_read(tile.q, tile.state, alpha=lln.alpha, q_map=lln.q_map)


@dataclass(frozen=True)
class BlockDiagonalAttention:
    parameters: LLNParameters
    kind: Attention = "block_diagonal"

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, packed: PackedSequences) -> Tensor:
        return self.parameters.by_run(q, k, v, packed, self.attend_run)

    def attend_run(self, q: Tensor, k: Tensor, v: Tensor, run: BlockRun) -> Tensor:
        return block_diagonal_attention(
            *(q, k, v),
            cu_seqlens=run.packed,
            block_size=run.block_size,
            num_sinks=self.parameters.num_sinks,
        )

    def block_of(self, length: int) -> int:
        return self.parameters.block_of(length)

    @property
    def reach(self) -> int:
        return 0

    @property
    def num_sinks(self) -> tuple[int, int]:
        return self.parameters.num_sinks

    def state_of(self, k: Tensor, v: Tensor, length: int) -> LLNState | None:
        return None

    def attend_tile(self, tile: Tile) -> Tensor:
        return block_diagonal_tile(
            *(tile.q, tile.k, tile.v),
            block_size=self.block_of(tile.length),
            sinks=tile.sinks,
        )


@dataclass(frozen=True)
class LLNDiagAttention:
    """LLN for what lies beyond a query's block, softmax for what lies within.

    A sequence of one block has nothing beyond it: there Diag alone is the softmax it stands in
    for, exactly, and LLN takes no share. From there its share grows with the part of the sequence
    that lies beyond a block, so that a few tokens more change a text's vector by little.
    """

    parameters: LLNParameters
    kind: Attention = "lln_diag"

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, packed: PackedSequences) -> Tensor:
        return self.parameters.by_run(q, k, v, packed, self._attend_run)

    def _attend_run(self, q: Tensor, k: Tensor, v: Tensor, run: BlockRun) -> Tensor:
        lln = self.parameters
        if run.is_whole:
            return BlockDiagonalAttention(lln).attend_run(q, k, v, run)
        beyond = _beyond(run.packed.host_bounds(), run.block_size, lln.mix.device)
        return lln_diag_attention(
            *(q, k, v),
            alpha=lln.alpha,
            beta=lln.beta,
            mix=lln.shares(q) * beyond.to(lln.mix),
            cu_seqlens=run.packed,
            block_size=run.block_size,
            num_sinks=lln.num_sinks,
            q_map=lln.q_map,
            k_map=lln.k_map,
        )

    def block_of(self, length: int) -> int:
        return self.parameters.block_of(length)

    @property
    def reach(self) -> int:
        return 0

    @property
    def num_sinks(self) -> tuple[int, int]:
        return self.parameters.num_sinks

    def state_of(self, k: Tensor, v: Tensor, length: int) -> LLNState | None:
        if length <= self.block_of(length):
            return None
        return LLNAttention(self.parameters).state_of(k, v, length)

    def attend_tile(self, tile: Tile) -> Tensor:
        lln = self.parameters
        if tile.state is None:
            return BlockDiagonalAttention(lln).attend_tile(tile)
        return lln_diag_tile(
            *(tile.q, tile.k, tile.v),
            state=tile.state,
            alpha=lln.alpha,
            mix=self.shares(tile.q, tile.length),
            block_size=self.block_of(tile.length),
            sinks=tile.sinks,
            q_map=lln.q_map,
        )

    def shares(self, q: Tensor, length: int) -> Tensor:
        """LLN's share for queries of one sequence of this length: (H,), or (n, H)."""
        return self.parameters.shares(q) * beyond_a_block(length, self.block_of(length))


@lru_cache(maxsize=16)
@torch.inference_mode(False)  # what is kept outlives the caller's mode and may serve autograd later
def _beyond(bounds: tuple[int, ...], block_size: int, device: torch.device) -> Tensor:
    """`beyond_a_block` of every token's sequence [T, 1], or of the only one.

    Kept for a batch's other layers: copying it makes the host wait for a GPU each time.
    """
    lengths = np.diff(bounds)
    parts = np.array([beyond_a_block(n, block_size) for n in lengths.tolist()])
    if len(parts) > 1:
        parts = parts.repeat(lengths)[:, None]
    return torch.from_numpy(parts).to(device)


CalibratedAttention: TypeAlias = LLNAttention | BlockDiagonalAttention | LLNDiagAttention
LayerAttention: TypeAlias = SoftmaxAttention | SlidingWindowAttention | CalibratedAttention

CALIBRATED: Mapping[str, type[CalibratedAttention]] = {
    "lln": LLNAttention,
    "block_diagonal": BlockDiagonalAttention,
    "lln_diag": LLNDiagAttention,
}
KINDS: tuple[str, ...] = ("softmax", *CALIBRATED)
HAS_LLN: tuple[str, ...] = ("lln", "lln_diag")
