"""Rows of attention matrices, a few at a time: no array here is ever N x N.

LLN in factor form: channel c spreads over the tokens with weights kappa_cj, token i picks a channel
with probability pi_ic, and P = pi kappa. Both are softmaxes, so no finite input overflows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from engine.diagnostics.base import HeadMap, HeadView

TILE_BYTES = 4 * 2**20
_ROWS_WORTH_A_TILE = 64
_MIN_ROWS = 8  # a tile of fewer would read all keys for next to nothing
_FLOAT64_BYTES = 8


class Factors(NamedTuple):
    """LLN attention as a mixture of D topics."""

    pi: Tensor  # [H, N, D] rows sum to 1
    kappa: Tensor  # [H, D, N] rows sum to 1


class HeadRows:
    """The attention rows of some heads, in float64."""

    def __init__(self, view: HeadView) -> None:
        self.view = view
        self.q = view.q.double().transpose(0, 1) * view.scale  # [H, N, D]
        self.keys = view.k.double().permute(1, 2, 0)  # [H, D, N]
        self.factors = lln_factors(view) if view.has_channels else None
        self.mix = None if view.mix is None else _mix_rows(view)

    def scores(self, rows: Tensor, keys: Tensor | None = None) -> Tensor:
        """q . k / sqrt(D) of these rows with these keys (all by default): [H, rows, keys]."""
        chosen = self.keys if keys is None else self.keys[:, :, keys]
        return torch.bmm(self.q[:, rows], chosen)

    def lln(self, rows: Tensor) -> Tensor:
        """These rows of pi kappa: [H, rows, N]."""
        assert self.factors is not None, "this kind of attention has no LLN branch"
        return torch.bmm(self.factors.pi[:, rows], self.factors.kappa)

    def lln_diag(self, rows: Tensor) -> Tensor:
        """These rows of mix * LLN + (1 - mix) * Diag: [H, rows, N]."""
        assert self.mix is not None, "this kind of attention has no mix"
        mix = self.mix[:, rows]  # [H, rows, 1]
        mixed = self.lln(rows).mul_(mix)
        self._add_diag(mixed, rows, 1 - mix)
        return mixed

    def full(self, rows: Tensor) -> Tensor:
        """These rows of the attention matrix, whatever its kind: [H, rows, N]."""
        match self.view.attention:
            case "softmax":
                return self.scores(rows).softmax(-1)
            case "lln":
                return self.lln(rows)
            case "lln_diag":
                return self.lln_diag(rows)
            case "block_diagonal":
                empty = self.q.new_zeros(len(self.q), len(rows), self.view.num_tokens)
                self._add_diag(empty, rows, torch.ones_like(empty[..., :1]))
                return empty

    def _add_diag(self, matrix: Tensor, rows: Tensor, share: Tensor) -> None:
        """Add share * Diag to these rows of a matrix, block by block, in place."""
        for run in block_runs(self.view, rows):
            visible = self.view.visible_keys(run.block)
            diag = self.scores(rows[run.positions], visible).softmax(-1)
            matrix[:, run.positions].index_add_(2, visible, diag * share[:, run.positions])


class BlockRun(NamedTuple):
    """Neighbouring rows of one block."""

    block: int
    positions: slice


def block_runs(view: HeadView, rows: Tensor) -> Iterator[BlockRun]:
    """Ascending rows, cut where a block ends."""
    blocks, counts = np.unique(rows.cpu().numpy() // view.block_size, return_counts=True)
    start = 0
    for block, count in zip(blocks.tolist(), counts.tolist(), strict=True):
        yield BlockRun(block, slice(start, start + count))
        start += count


def lln_factors(view: HeadView) -> Factors:
    """pi and kappa of every head, in float64."""
    assert view.alpha is not None, "an LLN view has alpha"
    assert view.beta is not None, "an LLN view has beta"
    key_exponents = channel_exponents(view.k, view.k_map, view.beta)  # [H, N, D]
    log_mass = key_exponents.logsumexp(1, keepdim=True)
    pi = (channel_exponents(view.q, view.q_map, view.alpha) + log_mass).softmax(-1)
    return Factors(pi, key_exponents.softmax(1).transpose(1, 2).contiguous())


def head_groups(view: HeadView) -> Iterator[list[int]]:
    """Heads by the number whose tiles of a fair number of rows fit TILE_BYTES, at least one."""
    fitting = TILE_BYTES // (_ROWS_WORTH_A_TILE * _row_bytes(view))
    size = max(1, fitting)
    for start in range(0, view.num_heads, size):
        yield list(range(start, min(start + size, view.num_heads)))


def row_tiles(view: HeadView, num_rows: int) -> Iterator[slice]:
    """So many rows cut into tiles that fit TILE_BYTES, or have a few rows."""
    fitting = TILE_BYTES // (view.num_heads * _row_bytes(view))
    size = max(_MIN_ROWS, fitting)
    for start in range(0, num_rows, size):
        yield slice(start, min(start + size, num_rows))


def _row_bytes(view: HeadView) -> int:
    """Of one head's tile row: block-diagonal rows hold only the keys they see."""
    width = view.num_tokens
    if view.attention == "block_diagonal":
        width = min(width, view.block_size + sum(view.num_sinks))
    return width * _FLOAT64_BYTES


def channel_exponents(rows: Tensor, head_map: HeadMap | None, scale: Tensor) -> Tensor:
    """alpha (q W + b), or the same of keys: [H, N, D]."""
    features = rows.double().transpose(0, 1)
    if head_map is not None:
        weight, bias = head_map
        if weight is not None:
            features = torch.bmm(features, weight.to(features))
        features = features + bias.to(features).unsqueeze(1)
    return scale.to(features)[:, None, None] * features


def _mix_rows(view: HeadView) -> Tensor:
    """The share of LLN of every head and row: [H, N, 1]."""
    assert view.mix is not None, "asked for only where there is a mix"
    mix = view.mix.to(view.q.device, torch.float64)
    return mix.expand(view.num_tokens, view.num_heads).t().unsqueeze(-1)
