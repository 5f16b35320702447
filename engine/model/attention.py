"""The attention of one layer, by kind.

Each kind attends to packed sequences, [T, H, D]. All but softmax can also read a long sequence tile
by tile (`TiledAttention`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from torch import Tensor

from engine.model.block_runs import BlockRun, beyond_blocks, beyond_blocks_in, by_run
from engine.model.lln_parameters import LLNParameters
from engine.model.tiled_attention import PassageTile, Tile
from engine.types import Attention
from kernels.attention import (
    LLNState,
    PackedSequences,
    block_diagonal_attention,
    block_diagonal_tile,
    lln_attention,
    lln_diag_attention,
    lln_diag_tile,
    lln_read,
    lln_softmax_tile,
    lln_state,
    sliding_window_attention,
    softmax_attention,
)
from kernels.attention.functional import lln_shares


@dataclass(frozen=True)
class SoftmaxAttention:
    kind: Attention = "softmax"

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, packed: PackedSequences) -> Tensor:
        return softmax_attention(q, k, v, cu_seqlens=packed)


@dataclass(frozen=True)
class SlidingWindowAttention:
    """Softmax over nearby keys, for the local layers of ModernBERT."""

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

    def has_state(self, length: int) -> bool:
        return False

    def state_of(self, k: Tensor, v: Tensor, length: int) -> LLNState | None:
        return None

    def attend_tile(self, tile: Tile) -> Tensor:
        q, end = tile.k.new_zeros(tile.k.shape), tile.before + len(tile.q)
        q[tile.before : end] = tile.q
        attended = sliding_window_attention(q, tile.k, tile.v, half_window=self.half_window)
        return attended[tile.before : end]

    def linked_state_of(self, k: Tensor, v: Tensor) -> LLNState | None:
        return None

    def attend_passages(self, tile: PassageTile) -> Tensor:
        return self(tile.q, tile.k, tile.v, tile.passages)


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

    def has_state(self, length: int) -> bool:
        return True

    def state_of(self, k: Tensor, v: Tensor, length: int) -> LLNState | None:
        return self.linked_state_of(k, v)

    def attend_tile(self, tile: Tile) -> Tensor:
        return self._read(tile.q, tile.state)

    def linked_state_of(self, k: Tensor, v: Tensor) -> LLNState | None:
        lln = self.parameters
        return lln_state(k, v, beta=lln.beta, k_map=lln.k_map)

    def attend_passages(self, tile: PassageTile) -> Tensor:
        return self._read(tile.q, tile.state)

    def _read(self, q: Tensor, state: LLNState | None) -> Tensor:
        assert state is not None, "LLN reads only its state"
        lln = self.parameters
        return lln_read(q, state, alpha=lln.alpha, q_map=lln.q_map)


@dataclass(frozen=True)
class _InBlocks:
    """What kinds of attention with blocks have in common."""

    parameters: LLNParameters

    def block_of(self, length: int) -> int:
        return self.parameters.block_of(length)

    @property
    def reach(self) -> int:
        return 0

    @property
    def num_sinks(self) -> tuple[int, int]:
        return self.parameters.num_sinks


@dataclass(frozen=True)
class BlockDiagonalAttention(_InBlocks):
    kind: Attention = "block_diagonal"

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, packed: PackedSequences) -> Tensor:
        return by_run(q, k, v, packed, self.attend_run, self.parameters)

    def attend_run(self, q: Tensor, k: Tensor, v: Tensor, run: BlockRun) -> Tensor:
        return block_diagonal_attention(
            *(q, k, v),
            cu_seqlens=run.packed,
            block_size=run.block_size,
            num_sinks=self.parameters.num_sinks,
        )

    def has_state(self, length: int) -> bool:
        return False

    def state_of(self, k: Tensor, v: Tensor, length: int) -> LLNState | None:
        return None

    def attend_tile(self, tile: Tile) -> Tensor:
        return block_diagonal_tile(
            *(tile.q, tile.k, tile.v),
            block_size=self.block_of(tile.length),
            sinks=tile.sinks,
        )

    def linked_state_of(self, k: Tensor, v: Tensor) -> LLNState | None:
        return None

    def attend_passages(self, tile: PassageTile) -> Tensor:
        return softmax_attention(tile.q, tile.k, tile.v, cu_seqlens=tile.passages)


@dataclass(frozen=True)
class LLNDiagAttention(_InBlocks):
    """LLN over the whole sequence, mixed with softmax within blocks (Diag).

    In a sequence of one block Diag is exactly softmax, and LLN has no share. In longer sequences
    LLN's share grows with the fraction of the sequence that is outside a block. So a few more
    tokens change a text's vector only slightly.
    """

    kind: Attention = "lln_diag"

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, packed: PackedSequences) -> Tensor:
        return by_run(q, k, v, packed, self._attend_run, self.parameters)

    def _attend_run(self, q: Tensor, k: Tensor, v: Tensor, run: BlockRun) -> Tensor:
        lln = self.parameters
        if run.is_whole:
            return BlockDiagonalAttention(lln).attend_run(q, k, v, run)
        return lln_diag_attention(
            *(q, k, v),
            alpha=lln.alpha,
            beta=lln.beta,
            mix=lln.mix_of_token,
            mix_scale=beyond_blocks_in(run, lln.mix),
            cu_seqlens=run.packed,
            block_size=run.block_size,
            num_sinks=lln.num_sinks,
            q_map=lln.q_map,
            k_map=lln.k_map,
        )

    def has_state(self, length: int) -> bool:
        return length > self.block_of(length)

    def state_of(self, k: Tensor, v: Tensor, length: int) -> LLNState | None:
        return self.linked_state_of(k, v) if self.has_state(length) else None

    def attend_tile(self, tile: Tile) -> Tensor:
        lln = self.parameters
        if tile.state is None:
            return BlockDiagonalAttention(lln).attend_tile(tile)
        return lln_diag_tile(
            *(tile.q, tile.k, tile.v),
            state=tile.state,
            alpha=lln.alpha,
            mix=lln.mix_of_token,
            mix_scale=self._beyond(tile.length),
            block_size=self.block_of(tile.length),
            sinks=tile.sinks,
            q_map=lln.q_map,
        )

    def linked_state_of(self, k: Tensor, v: Tensor) -> LLNState | None:
        return LLNAttention(self.parameters).linked_state_of(k, v)

    def attend_passages(self, tile: PassageTile) -> Tensor:
        assert tile.state is not None, "a document of linked passages has a state"
        lln = self.parameters
        return lln_softmax_tile(
            *(tile.q, tile.k, tile.v),
            cu_seqlens=tile.passages,
            state=tile.state,
            alpha=lln.alpha,
            mix=lln.mix_of_token,
            mix_scale=tile.outside.to(lln.mix.dtype),
            q_map=lln.q_map,
        )

    def shares(self, q: Tensor, length: int) -> Tensor:
        """LLN's share for queries of one sequence of this length: (H,), or (n, H)."""
        return self.full_shares(q) * self._beyond(length)

    def full_shares(self, q: Tensor) -> Tensor:
        """LLN's share if all of the document were outside the query's block."""
        return lln_shares(q, mix=self.parameters.mix_of_token)

    def _beyond(self, length: int) -> Tensor:
        mix = self.parameters.mix
        return beyond_blocks((0, length), self.block_of(length), mix.device, mix.dtype)


CalibratedAttention: TypeAlias = LLNAttention | BlockDiagonalAttention | LLNDiagAttention
LayerAttention: TypeAlias = SoftmaxAttention | SlidingWindowAttention | CalibratedAttention

CALIBRATED: Mapping[str, type[CalibratedAttention]] = {
    "lln": LLNAttention,
    "block_diagonal": BlockDiagonalAttention,
    "lln_diag": LLNDiagAttention,
}
KINDS: tuple[str, ...] = ("softmax", *CALIBRATED)
HAS_LLN: tuple[str, ...] = ("lln", "lln_diag")
