"""What an attention needs, and must offer, to read a long sequence tile by tile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from kernels.attention import LLNState, TileSinks


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
