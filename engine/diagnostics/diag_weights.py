"""Diag's weights of some heads, some blocks at a time, kept for the next one who asks."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from engine.diagnostics.blocks import Blocks
from engine.huge_pages import on_huge_pages


class DiagWeights:
    """Worked out when first asked for: [H, blocks, width, keys].

    They are kept in `room`, which may be theirs or part of a larger one; without one, in their own,
    if they take no more than so many bytes.
    """

    def __init__(
        self,
        blocks: Blocks,
        max_bytes: int,
        room: Tensor | None = None,
        *,
        is_full: bool = False,
    ) -> None:
        self._blocks = blocks
        self._max_bytes = max_bytes
        self._room = room
        self._is_known = [is_full] * blocks.count

    def tiles(self) -> Iterator[tuple[slice, Tensor]]:
        """Blocks after blocks. Callers yield in between."""
        for blocks in self._blocks.tiles():
            yield blocks, self._of(blocks)

    def _of(self, blocks: slice) -> Tensor:
        if self._room is None:
            self._room = room_for(self._blocks, self._max_bytes)
        if self._room is None:
            return self._blocks.weights(blocks)
        kept = self._room[:, blocks]
        if not all(self._is_known[blocks]):
            self._blocks.weights(blocks, out=kept)
            self._is_known[blocks] = [True] * (blocks.stop - blocks.start)
        return kept


def room_for(blocks: Blocks, max_bytes: int) -> Tensor | None:
    """For the weights of all heads of these blocks, if it takes no more than so many bytes."""
    if blocks.num_bytes > max_bytes:
        return None
    return on_huge_pages(torch.empty(blocks.shape, dtype=blocks.dtype, device=blocks.sinks.device))
