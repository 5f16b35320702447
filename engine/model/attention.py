"""The attention of one layer: its kind, and the numbers that it was calibrated with.

Each kind attends to packed sequences, [T, H, D]. All but softmax can also read a long sequence tile
by tile (`TiledAttention`).

The block size depends on the length of a sequence. So kinds with blocks split a batch into runs of
neighbouring sequences that share a block size, and that are either all one block or all longer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from itertools import groupby, pairwise
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from engine.checkpoint.block_size import LongBlock, beyond_a_block, block_of
from engine.types import Attention
from kernels.attention import (
    Gate,
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
from kernels.attention.arguments import Map
from kernels.attention.functional import lln_shares


@dataclass(frozen=True, kw_only=True)
class LLNParameters:
    """Numbers fixed by calibration, so a text's vector never depends on the rest of its batch."""

    alpha: Tensor  # [H]
    beta: Tensor  # [H]
    mix: Tensor  # [H]
    key_shift: Tensor  # [H, D] added to every key before LLN's exponential, to centre the keys
    block_size: int
    num_sinks: tuple[int, int]
    long_block: LongBlock | None = None

    # Optional, from training; None costs nothing.
    query_map: Tensor | None = None  # [H, D, D] applied to queries before LLN's exponential
    key_map: Tensor | None = None  # [H, D, D] applied to keys
    gate: Tensor | None = None  # [H, D] a token's share of LLN is sigmoid(gate . q + logit(mix))

    @cached_property
    def q_map(self) -> Map | None:
        if self.query_map is None:
            return None
        with torch.inference_mode(False):  # it may be used under autograd later
            return self.query_map, torch.zeros_like(self.key_shift)

    @property
    def k_map(self) -> Map:
        return self.key_map, self.key_shift

    @cached_property
    def mix_of_token(self) -> Tensor | Gate:
        """LLN's share as attention takes it: by head, or by token with a gate."""
        if self.gate is None:
            return self.mix
        with torch.inference_mode(False):
            return Gate(self.gate, torch.logit(self.mix))

    def block_of(self, length: int) -> int:
        """The block size in a text of this length."""
        return block_of(length, self.block_size, self.long_block)

    def by_run(
        self, q: Tensor, k: Tensor, v: Tensor, packed: PackedSequences, attend: AttendRun
    ) -> Tensor:
        """Attends to each run of a batch on its own."""
        usual = self.block_size
        if q.shape[0] <= usual:  # one run for certain: a short query need not wait for the search
            return attend(q, k, v, BlockRun(slice(None), packed, usual, True))
        runs = _runs_of(packed, usual, self.long_block, q.device)
        if len(runs) == 1:
            return attend(q, k, v, runs[0]._replace(packed=packed))
        return torch.cat([attend(q[run.rows], k[run.rows], v[run.rows], run) for run in runs])

    def on(self, device: torch.device) -> LLNParameters:
        tensors: dict[str, Any] = {
            field.name: value.to(device)
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), Tensor)
        }
        return replace(self, **tensors)


class BlockRun(NamedTuple):
    """Neighbouring sequences of a batch that are attended to alike."""

    rows: slice
    packed: PackedSequences
    block_size: int
    is_whole: bool  # each sequence is one block


def _runs_of(
    packed: PackedSequences, usual: int, long: LongBlock | None, device: torch.device
) -> tuple[BlockRun, ...]:
    """Kept with the bounds: to look them up by thousands of numbers takes every layer a while."""
    key = block_runs, usual, long
    if key not in packed.kept:
        packed.kept[key] = block_runs(packed.host_bounds(), usual, long, device)
    runs: tuple[BlockRun, ...] = packed.kept[key]
    return runs


AttendRun: TypeAlias = Callable[[Tensor, Tensor, Tensor, BlockRun], Tensor]


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # cached tensors may be used under autograd later
def block_runs(
    bounds: tuple[int, ...], usual: int, long: LongBlock | None, device: torch.device
) -> tuple[BlockRun, ...]:
    """The runs of a batch. A batch sorted by length has three at most."""

    def kind(pair: tuple[int, int]) -> tuple[int, bool]:
        length = pair[1] - pair[0]
        size = block_of(length, usual, long)
        return size, length <= size

    runs = []
    for (size, is_whole), pairs in groupby(pairwise(bounds), kind):
        run = list(pairs)
        start, end = run[0][0], run[-1][1]
        inside = [0, *(last - start for _, last in run)]
        packed = PackedSequences.of(inside, device)
        runs.append(BlockRun(slice(start, end), packed, size, is_whole))
    return tuple(runs)


@dataclass(frozen=True)
class Tile:
    """Some rows of a long sequence, and what their attention needs of the other rows."""

    q: Tensor  # [n, H, D]
    k: Tensor  # [before + n + after, H, D]
    v: Tensor
    before: int  # rows of k and v before those of q, within the reach of the attention
    length: int  # of the whole sequence
    state: LLNState | None
    sinks: TileSinks


class TiledAttention(Protocol):
    """Attention that can process a long sequence tile by tile."""

    def block_of(self, length: int) -> int:
        """The block size in a sequence of this length. Tiles are whole blocks."""
        ...

    @property
    def num_sinks(self) -> tuple[int, int]:
        """Tokens at the start and the end whose keys and values every tile needs."""
        ...

    @property
    def reach(self) -> int:
        """Rows before and after a tile whose keys and values it needs."""
        ...

    def has_state(self, length: int) -> bool:
        """Whether a sequence of this length has an LLN state."""
        ...

    def state_of(self, k: Tensor, v: Tensor, length: int) -> LLNState | None:
        """What these rows add to LLN's state, in a sequence of this length."""
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
        lln = self.parameters
        return lln_state(k, v, beta=lln.beta, k_map=lln.k_map)

    def attend_tile(self, tile: Tile) -> Tensor:
        assert tile.state is not None, "LLN reads only its state"
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


@dataclass(frozen=True)
class LLNDiagAttention:
    """LLN over the whole sequence, mixed with softmax within blocks (Diag).

    In a sequence of one block Diag is exactly softmax, and LLN has no share. In longer sequences
    LLN's share grows with the fraction of the sequence that is outside a block. So a few more
    tokens change a text's vector only slightly.
    """

    parameters: LLNParameters
    kind: Attention = "lln_diag"

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, packed: PackedSequences) -> Tensor:
        return self.parameters.by_run(q, k, v, packed, self._attend_run)

    def _attend_run(self, q: Tensor, k: Tensor, v: Tensor, run: BlockRun) -> Tensor:
        lln = self.parameters
        if run.is_whole:
            return BlockDiagonalAttention(lln).attend_run(q, k, v, run)
        return lln_diag_attention(
            *(q, k, v),
            alpha=lln.alpha,
            beta=lln.beta,
            mix=lln.mix_of_token,
            mix_scale=_beyond_in(run, lln.mix),
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

    def has_state(self, length: int) -> bool:
        return length > self.block_of(length)

    def state_of(self, k: Tensor, v: Tensor, length: int) -> LLNState | None:
        if not self.has_state(length):
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
            mix=lln.mix_of_token,
            mix_scale=self._beyond(tile.length),
            block_size=self.block_of(tile.length),
            sinks=tile.sinks,
            q_map=lln.q_map,
        )

    def shares(self, q: Tensor, length: int) -> Tensor:
        """LLN's share for queries of one sequence of this length: (H,), or (n, H)."""
        lln = self.parameters
        return lln_shares(q, mix=lln.mix_of_token, mix_scale=self._beyond(length))

    def _beyond(self, length: int) -> Tensor:
        mix = self.parameters.mix
        return _beyond((0, length), self.block_of(length), mix.device, mix.dtype)


def _beyond_in(run: BlockRun, like: Tensor) -> Tensor:
    """Kept for the batch's other layers, because each copy makes the host wait for a GPU."""
    key, kept = (_beyond, run.block_size, like.device, like.dtype), run.packed.kept
    if key not in kept:
        kept[key] = _beyond(run.packed.host_bounds(), run.block_size, like.device, like.dtype)
    beyond: Tensor = kept[key]
    return beyond


@lru_cache(maxsize=64)  # every tile of a long text asks for the same
@torch.inference_mode(False)  # kept tensors may be used under autograd later
def _beyond(
    bounds: tuple[int, ...], block_size: int, device: torch.device, dtype: torch.dtype
) -> Tensor:
    """`beyond_a_block` of every sequence [B]."""
    parts = [beyond_a_block(end - start, block_size) for start, end in pairwise(bounds)]
    return torch.tensor(parts, dtype=torch.float64).to(device, dtype)


CalibratedAttention: TypeAlias = LLNAttention | BlockDiagonalAttention | LLNDiagAttention
LayerAttention: TypeAlias = SoftmaxAttention | SlidingWindowAttention | CalibratedAttention

CALIBRATED: Mapping[str, type[CalibratedAttention]] = {
    "lln": LLNAttention,
    "block_diagonal": BlockDiagonalAttention,
    "lln_diag": LLNDiagAttention,
}
KINDS: tuple[str, ...] = ("softmax", *CALIBRATED)
HAS_LLN: tuple[str, ...] = ("lln", "lln_diag")
