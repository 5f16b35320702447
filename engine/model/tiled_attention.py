"""What an attention needs, and must offer, to read a long sequence tile by tile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from kernels.attention import LLNState, PackedSequences, TileSinks


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


@dataclass(frozen=True)
class PassageTile:
    """Some of the linked passages of a document: each attends within itself, and to the rest of
    the document by LLN's state alone."""

    q: Tensor  # [n, H, D]
    k: Tensor
    v: Tensor
    passages: PackedSequences
    outside: Tensor  # [passages] which share of the document's tokens is outside each
    state: LLNState | None  # of the whole document


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

    def linked_state_of(self, k: Tensor, v: Tensor) -> LLNState | None:
        """What these rows add to LLN's state of a document of linked passages."""
        ...

    def attend_passages(self, tile: PassageTile) -> Tensor:
        """[n, H, D]"""
        ...
