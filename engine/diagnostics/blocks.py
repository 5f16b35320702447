"""What Diag sees: every block's own keys and the sinks, each once, as one rectangle a block.

All blocks are given the same shape: the last one is filled up with rows that weigh nothing, and
keys that a block does not see (a sink that is its own key already) have weight 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import pad

from engine.diagnostics.view import HeadView

TILE_BYTES = 2**21


class Blocks:
    """The blocks of some heads. Scores are worked out in float64, weights held in any type."""

    def __init__(self, view: HeadView, dtype: torch.dtype = torch.float64) -> None:
        self.view = view
        self.dtype = dtype
        self.width = min(view.block_size, view.num_tokens)
        self.count = -(-view.num_tokens // self.width)
        self.sinks = torch.tensor(view.sinks, dtype=torch.long, device=view.q.device)

    @cached_property
    def keys(self) -> Tensor:
        """The position of every key of every block: [blocks, width + sinks]."""
        own = torch.arange(self.count * self.width, device=self.sinks.device)
        own = own.clamp_max(self.view.num_tokens - 1).view(self.count, self.width)
        return torch.cat([own, self.sinks.expand(self.count, -1)], dim=1)

    @cached_property
    def seen(self) -> Tensor:
        """Whether the block sees that key: [blocks, width + sinks]."""
        device = self.sinks.device
        own = torch.arange(self.count * self.width, device=device).view(self.count, self.width)
        block_of_sink = self.sinks // self.width
        elsewhere = block_of_sink != torch.arange(self.count, device=device).unsqueeze(1)
        return torch.cat([own < self.view.num_tokens, elsewhere], dim=1)

    @cached_property
    def _hides(self) -> list[bool]:
        """Whether a block has keys that it does not see: few do."""
        hides: list[bool] = (~self.seen).any(1).tolist()
        return hides

    def hide(self, by_key: Tensor, blocks: slice, value: float = 0.0) -> Tensor:
        """[H, blocks, width, width + sinks] with this value at keys not seen, in place."""
        if any(self._hides[blocks]):
            by_key.masked_fill_(~self.seen[blocks].unsqueeze(1), value)
        return by_key

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Of all weights: heads, blocks, rows, keys."""
        return self.view.num_heads, self.count, self.width, self.width + len(self.sinks)

    @property
    def num_bytes(self) -> int:
        """Of all weights."""
        return math.prod(self.shape) * self.dtype.itemsize

    def tiles(self) -> Iterator[slice]:
        """Blocks by as many as fit TILE_BYTES, at least one."""
        size = max(1, TILE_BYTES * self.count // self.num_bytes)
        for start in range(0, self.count, size):
            yield slice(start, min(start + size, self.count))

    def rows(self, per_token: Tensor, blocks: slice) -> Tensor:
        """[H, N, ...] as [H, blocks, width, ...], zeros where the last block is filled up."""
        return self.split(per_token[:, self.tokens(blocks)])

    def split(self, per_token: Tensor) -> Tensor:
        """[H, tokens of some blocks, ...] as [H, blocks, width, ...]."""
        missing = -per_token.shape[1] % self.width
        if missing:
            per_token = pad(per_token, (0, 0) * (per_token.dim() - 2) + (0, missing))
        count = per_token.shape[1] // self.width
        return per_token.reshape(len(per_token), count, self.width, *per_token.shape[2:])

    def tokens(self, blocks: slice) -> slice:
        """The tokens of these blocks."""
        return slice(blocks.start * self.width, min(blocks.stop * self.width, self.view.num_tokens))

    def flat(self, by_row: Tensor, blocks: slice) -> Tensor:
        """[H, blocks, width, ...] as [H, tokens of these blocks, ...]."""
        tokens = self.tokens(blocks)
        return by_row.flatten(1, 2)[:, : tokens.stop - tokens.start]

    def log_weights(self, blocks: slice) -> Tensor:
        """log Diag, -inf for keys not seen: [H, blocks, width, width + sinks] in float64."""
        return self._scores(blocks).log_softmax(-1)

    def _scores(self, blocks: slice) -> Tensor:
        q = self.rows(self.view.q.transpose(0, 1), blocks).double() * self.view.scale
        k = self.view.k[self.keys[blocks]].double()  # [blocks, keys, H, D]
        return self.hide(q @ k.permute(2, 0, 3, 1), blocks, -torch.inf)

    def weights(self, blocks: slice, out: Tensor | None = None) -> Tensor:
        """Diag, rows beyond the end all 0: [H, blocks, width, width + sinks]."""
        scores = self._scores(blocks)
        # Below the largest of its row, a score that matters is small, and rounding it too.
        below = scores.sub_(scores.amax(-1, keepdim=True)).to(self.dtype)
        weights = torch.softmax(below, -1, out=below if out is None else out)
        beyond = blocks.stop * self.width - self.view.num_tokens
        if beyond > 0:
            weights[:, -1, self.width - beyond :] = 0.0
        return weights

    @cached_property
    def _distances_within(self) -> Tensor:
        """|i - j| within a block, the same for all: [width, width]."""
        places = torch.arange(self.width, dtype=self.dtype, device=self.sinks.device)
        return (places.unsqueeze(1) - places).abs_()

    def distances(self, blocks: slice) -> Tensor:
        """|i - j| between the rows and the keys of blocks: [blocks, width, width + sinks]."""
        own = self._distances_within.expand(blocks.stop - blocks.start, -1, -1)
        rows = torch.arange(blocks.start * self.width, blocks.stop * self.width).to(own)
        to_sinks = (rows.view(-1, self.width, 1) - self.sinks.to(own)).abs_()
        return torch.cat([own, to_sinks], dim=-1)
