"""LLN and Diag in the forms that keep instruments linear: factors for LLN, blocks for Diag.

LLN is a mixture of D channels, P = pi kappa: token i picks channel c with probability pi_ic, and
channel c spreads over the tokens with weights kappa_cj. Both are softmaxes, so no finite input
overflows.

Diag's weights are one rectangle for each block: its rows against its own keys and the sinks, each
key once. All blocks have the same shape. The last one is padded with rows that weigh nothing, and
keys that a block does not see (a sink that is one of its own keys) have weight 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from engine.diagnostics.head_view import HeadMap, HeadView, token_tiles
from engine.diagnostics.readings import Effort
from engine.platform.memory import on_huge_pages

TILE_BYTES = 2**21
"""Diag's weights computed at once."""

MAX_BUFFER_BYTES = 512 * 2**20
"""The most that the heads of a layer keep from one instrument to the next: Diag's weights and
LLN's factors."""


class Factors(NamedTuple):
    pi: Tensor  # [H, N, D] rows sum to 1
    kappa: Tensor  # [H, D, N] rows sum to 1

    def to(self, dtype: torch.dtype) -> Factors:
        """In another type. Numbers that would be subnormal in it, which are slow to compute with,
        become 0."""
        if dtype == self.pi.dtype:
            return self
        return Factors(*(_converted(part, dtype) for part in self))

    @property
    def chain(self) -> Tensor:
        """T = kappa pi, a stochastic matrix with the non-zero spectrum of P: [H, D, D]."""
        return torch.bmm(self.kappa, self.pi)

    @property
    def overlap(self) -> Tensor:
        """kappa kappa^T: [H, D, D]."""
        return torch.bmm(self.kappa, self.kappa.mT)


def _converted(part: Tensor, dtype: torch.dtype) -> Tensor:
    converted = on_huge_pages(torch.empty_like(part, dtype=dtype)).copy_(part)
    return torch.nn.functional.threshold(converted, torch.finfo(dtype).tiny, 0.0, inplace=True)


def lln_factors(view: HeadView) -> Factors:
    """pi and kappa of every head, in float64."""
    assert view.alpha is not None, "an LLN view has alpha"
    assert view.beta is not None, "an LLN view has beta"
    masses = [
        channel_exponents(view.k[tile], view.k_map, view.beta).logsumexp(1)
        for tile in token_tiles(view.num_tokens)
    ]
    log_mass = torch.stack(masses).logsumexp(0).unsqueeze(1)  # [H, 1, D]
    shape = (view.num_heads, view.num_tokens, view.head_size)
    pi = on_huge_pages(torch.empty(shape, dtype=torch.float64, device=view.q.device))
    kappa = on_huge_pages(torch.empty_like(pi.mT, memory_format=torch.contiguous_format))
    for tile in token_tiles(view.num_tokens):
        queries = channel_exponents(view.q[tile], view.q_map, view.alpha)
        pi[:, tile] = (queries + log_mass).softmax(-1)
        keys = channel_exponents(view.k[tile], view.k_map, view.beta)
        kappa[:, :, tile] = (keys - log_mass).exp_().mT
    return Factors(pi, kappa)


def channel_exponents(rows: Tensor, head_map: HeadMap | None, scale: Tensor) -> Tensor:
    """alpha (q W + b), or the same of keys with beta: [H, N, D]."""
    features = rows.double().transpose(0, 1)
    if head_map is not None:
        weight, bias = head_map
        if weight is not None:
            features = torch.bmm(features, weight.to(features))
        features = features + bias.to(features).unsqueeze(1)
    return scale.to(features)[:, None, None] * features


def diag_shape(
    *, num_heads: int, num_tokens: int, block_size: int, num_sinks: int
) -> tuple[int, int, int, int]:
    """The shape of Diag's weights: heads, blocks, rows, keys."""
    width = min(block_size, num_tokens)
    return num_heads, -(-num_tokens // width), width, width + num_sinks


class Blocks:
    """The blocks of some heads. Scores are computed in float64; weights have the given type."""

    def __init__(self, view: HeadView, dtype: torch.dtype = torch.float64) -> None:
        self.view = view
        self.dtype = dtype
        self.sinks = torch.tensor(view.sinks, dtype=torch.long, device=view.q.device)
        self.shape = diag_shape(
            num_heads=view.num_heads,
            num_tokens=view.num_tokens,
            block_size=view.block_size,
            num_sinks=len(self.sinks),
        )
        _, self.count, self.width, _ = self.shape

    @cached_property
    def keys(self) -> Tensor:
        """The position of every key of every block: [blocks, width + sinks]."""
        return self._keys_of(slice(0, self.count))

    @cached_property
    def seen(self) -> Tensor:
        """Whether the block sees that key: [blocks, width + sinks]."""
        return self._seen_of(slice(0, self.count))

    def visible_keys(self, block: int) -> Tensor:
        """The keys that every query of a block sees: its own, then the sinks outside it."""
        one = slice(block, block + 1)
        return self._keys_of(one)[self._seen_of(one)]

    def _keys_of(self, blocks: slice) -> Tensor:
        own = self._padded_tokens(blocks).clamp_max(self.view.num_tokens - 1)
        return torch.cat([own, self.sinks.expand(len(own), -1)], dim=1)

    def _seen_of(self, blocks: slice) -> Tensor:
        own = self._padded_tokens(blocks)
        of_rows = torch.arange(blocks.start, blocks.stop, device=self.sinks.device).unsqueeze(1)
        return torch.cat([own < self.view.num_tokens, self.sinks // self.width != of_rows], dim=1)

    def _padded_tokens(self, blocks: slice) -> Tensor:
        """The tokens of blocks as if the last one were full: [blocks, width]."""
        tokens = torch.arange(
            blocks.start * self.width, blocks.stop * self.width, device=self.sinks.device
        )
        return tokens.view(-1, self.width)

    @cached_property
    def _hides(self) -> list[bool]:
        """Whether a block has keys that it does not see: few do."""
        hides: list[bool] = (~self.seen).any(1).tolist()
        return hides

    def hide(self, by_key: Tensor, blocks: slice, value: float = 0.0) -> Tensor:
        """Set [H, blocks, width, width + sinks] to this value at keys not seen, in place."""
        if any(self._hides[blocks]):
            by_key.masked_fill_(~self.seen[blocks].unsqueeze(1), value)
        return by_key

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights of all blocks."""
        return math.prod(self.shape) * self.dtype.itemsize

    def tiles(self) -> Iterator[slice]:
        """As many blocks at a time as fit TILE_BYTES, at least one."""
        size = max(1, TILE_BYTES * self.count // self.num_bytes)
        for start in range(0, self.count, size):
            yield slice(start, min(start + size, self.count))

    def rows(self, per_token: Tensor, blocks: slice) -> Tensor:
        """[H, N, ...] as [H, blocks, width, ...], zeros where the last block is padded."""
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

    def weights(self, blocks: slice, out: Tensor | None = None) -> Tensor:
        """Diag, rows beyond the end all 0: [H, blocks, width, width + sinks]."""
        scores = self._scores(blocks)
        # Less the largest of its row, a score that matters is small, and so is its rounding.
        below = scores.sub_(scores.amax(-1, keepdim=True)).to(self.dtype)
        weights = torch.softmax(below, -1, out=below if out is None else out)
        beyond = blocks.stop * self.width - self.view.num_tokens
        if beyond > 0:
            weights[:, -1, self.width - beyond :] = 0.0
        return weights

    def _scores(self, blocks: slice) -> Tensor:
        q = self.rows(self.view.q.transpose(0, 1), blocks).double() * self.view.scale
        k = self.view.k[self.keys[blocks]].double()  # [blocks, keys, H, D]
        return self.hide(q @ k.permute(2, 0, 3, 1), blocks, -torch.inf)

    def distances(self, blocks: slice) -> Tensor:
        """|i - j| between the rows and the keys of blocks: [blocks, width, width + sinks]."""
        own = self._distances_within.expand(blocks.stop - blocks.start, -1, -1)
        rows = torch.arange(blocks.start * self.width, blocks.stop * self.width).to(own)
        to_sinks = (rows.view(-1, self.width, 1) - self.sinks.to(own)).abs_()
        return torch.cat([own, to_sinks], dim=-1)

    @cached_property
    def _distances_within(self) -> Tensor:
        """|i - j| within a block, the same for all: [width, width]."""
        places = torch.arange(self.width, dtype=self.dtype, device=self.sinks.device)
        return (places.unsqueeze(1) - places).abs_()


class DiagWeights:
    """Diag's weights [H, blocks, width, keys] of some heads, each computed on first use.

    They are stored in `buffer`, which may be part of a larger one; without a buffer, in their own
    if they take at most MAX_BUFFER_BYTES, else they are computed again on each use. `is_full` says
    that the buffer has all of them already.
    """

    def __init__(
        self, blocks: Blocks, buffer: Tensor | None = None, *, is_full: bool = False
    ) -> None:
        self._blocks = blocks
        self._buffer = buffer
        self._is_computed = [is_full] * blocks.count

    def tiles(self) -> Iterator[tuple[slice, Tensor]]:
        """Some blocks at a time, with their weights. Callers yield between tiles."""
        if self._buffer is None and self._blocks.num_bytes <= MAX_BUFFER_BYTES:
            self._buffer = _allocate(self._blocks)
        for blocks in self._blocks.tiles():
            yield blocks, self._of(blocks)

    def _of(self, blocks: slice) -> Tensor:
        if self._buffer is None:
            return self._blocks.weights(blocks)
        weights = self._buffer[:, blocks]
        if not all(self._is_computed[blocks]):
            self._blocks.weights(blocks, out=weights)
            self._is_computed[blocks] = [True] * (blocks.stop - blocks.start)
        return weights


class DiagWeightBuffer:
    """Memory for the Diag weights of all heads of a layer, if MAX_BUFFER_BYTES suffice.

    The layers of a model use it one after the other: the first write to new memory costs more than
    writing to it again.
    """

    def __init__(self) -> None:
        self.weights: Tensor | None = None
        self.is_large_enough = False
        """Whether all that the heads of the layer keep fits, LLN's factors included."""

    @staticmethod
    def bytes_for(
        *,
        num_heads: int,
        num_tokens: int,
        channels: int,
        block_size: int,
        num_sinks: int,
        dtype: torch.dtype,
    ) -> int:
        """What the heads of a layer keep from one instrument to the next: LLN's factors of as many
        channels (0 for none), and Diag's weights in blocks of this size (0 for none)."""
        numbers = 2 * num_heads * num_tokens * channels
        if block_size:
            numbers += math.prod(
                diag_shape(
                    num_heads=num_heads,
                    num_tokens=num_tokens,
                    block_size=block_size,
                    num_sinks=num_sinks,
                )
            )
        return numbers * dtype.itemsize

    def open_for(self, view: HeadView, effort: Effort) -> None:
        """Prepare for a layer. The weights of the layer before are overwritten."""
        dtype = effort.dtype_of(view.num_tokens)
        num_bytes = self.bytes_for(
            num_heads=view.num_heads,
            num_tokens=view.num_tokens,
            channels=view.head_size if view.has_channels else 0,
            block_size=view.block_size if view.has_blocks else 0,
            num_sinks=len(view.sinks),
            dtype=dtype,
        )
        self.is_large_enough = num_bytes <= MAX_BUFFER_BYTES
        if not view.has_blocks or not self.is_large_enough:
            self.weights = None
            return
        blocks = Blocks(view, dtype)
        known = self.weights
        if known is None or known.shape != blocks.shape or known.dtype != dtype:
            self.weights = _allocate(blocks)

    def of(self, heads: Sequence[int]) -> Tensor | None:
        """The part of these consecutive heads."""
        return None if self.weights is None else self.weights[heads[0] : heads[-1] + 1]


def _allocate(blocks: Blocks) -> Tensor:
    return on_huge_pages(torch.empty(blocks.shape, dtype=blocks.dtype, device=blocks.sinks.device))
