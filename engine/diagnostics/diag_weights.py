"""Diag's weights of some heads, some blocks at a time, kept for the next one who asks."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from engine.diagnostics.blocks import Blocks


class DiagWeights:
    def __init__(self, blocks: Blocks, max_bytes: int) -> None:
        self._blocks = blocks
        self._keeps = blocks.head_bytes * blocks.view.num_heads <= max_bytes
        self._kept: dict[int, Tensor] = {}

    def tiles(self) -> Iterator[tuple[slice, Tensor]]:
        """[H, blocks, width, width + sinks] of blocks after blocks. Callers yield in between."""
        for blocks in self._blocks.tiles():
            weights = self._kept.get(blocks.start)
            if weights is None:
                weights = self._blocks.weights(blocks)
                if self._keeps:
                    self._kept[blocks.start] = weights
            yield blocks, weights

    def of(self, blocks: slice) -> Tensor:
        """Of these blocks: views of what is kept where that is possible."""
        parts = []
        for start, weights in sorted(self._kept.items()):
            inside = slice(max(blocks.start - start, 0), max(blocks.stop - start, 0))
            parts.append(weights[:, inside])
        found = [part for part in parts if part.shape[1]]
        if sum(part.shape[1] for part in found) < blocks.stop - blocks.start:
            return self._blocks.weights(blocks)
        return found[0] if len(found) == 1 else torch.cat(found, dim=1)
