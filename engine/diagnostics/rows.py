"""Whole attention rows, a few at a time: no array here is ever N x N.

All rows are read where that is affordable (`Effort.num_rows`), else a sample drawn without
replacement, the same for every head.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from engine.diagnostics.blocks import Blocks
from engine.diagnostics.factors import Factors
from engine.diagnostics.statistics import RowStatistics, log_of, row_statistics
from engine.diagnostics.view import HeadView
from engine.diagnostics.work import Work

TILE_BYTES = 2**20
_FLOAT64_BYTES = 8
_SMALLEST_OF_FLOAT32 = 1e-35


class RowSample(NamedTuple):
    """What was read of some rows, or of all."""

    rows: Tensor  # [rows] ascending
    statistics: RowStatistics
    row_sum: Tensor  # [H, N] of these rows, key by key


class HeadRows:
    """The attention rows of some heads, in float64 unless told otherwise."""

    def __init__(
        self,
        view: HeadView,
        factors: Factors | None,
        blocks: Blocks | None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        self.view = view
        if factors is not None and dtype != torch.float64:
            # A probability is at least 1 / D of the smallest weight of a channel.
            fits = float(factors.kappa.min()) > _SMALLEST_OF_FLOAT32 * view.head_size
            dtype = dtype if fits else torch.float64
            factors = factors.to(dtype)
        self.dtype = dtype
        self.factors = factors
        self.blocks = blocks

    @cached_property
    def keys(self) -> Tensor:
        """[H, D, N]."""
        return self.view.k.to(self.dtype).permute(1, 2, 0)

    def queries(self, rows: Tensor) -> Tensor:
        """[H, rows, D], scaled."""
        return self.view.q[rows].to(self.dtype).transpose(0, 1) * self.view.scale

    def log_rows(self, rows: Tensor) -> Tensor:
        """log P of these rows, -inf for keys never seen: [H, rows, N]."""
        match self.view.attention:
            case "softmax":
                return torch.bmm(self.queries(rows), self.keys).log_softmax(-1)
            case "lln" | "lln_diag":
                return log_of(self.full(rows))
            case "block_diagonal":
                return self.full(rows).log_()

    def full(self, rows: Tensor) -> Tensor:
        """These rows of the attention matrix: [H, rows, N]."""
        match self.view.attention:
            case "softmax":
                return torch.bmm(self.queries(rows), self.keys).softmax(-1)
            case "lln":
                return self._lln(rows)
            case "lln_diag":
                share = mix_by_row(self.view)[:, rows].unsqueeze(-1).to(self.dtype)
                return self._add_diag(self._lln(rows).mul_(share), rows, 1 - share)
            case "block_diagonal":
                empty = self.keys.new_zeros(self.view.num_heads, len(rows), self.view.num_tokens)
                return self._add_diag(empty, rows, torch.ones_like(empty[..., :1]))

    def _lln(self, rows: Tensor) -> Tensor:
        assert self.factors is not None, "this kind of attention has no LLN branch"
        return torch.bmm(self.factors.pi[:, rows], self.factors.kappa)

    def _add_diag(self, matrix: Tensor, rows: Tensor, share: Tensor) -> Tensor:
        """Add share * Diag to these rows of a matrix, in place."""
        assert self.blocks is not None, "this kind of attention has no blocks"
        block_of_row = rows // self.blocks.width
        keys = self.blocks.keys[block_of_row]  # [rows, seen keys]
        chosen = self.keys[:, :, keys].permute(0, 2, 1, 3)  # [H, rows, D, seen keys]
        scores = (self.queries(rows).unsqueeze(2) @ chosen).squeeze(2)
        scores.masked_fill_(~self.blocks.seen[block_of_row], -torch.inf)
        diag = scores.softmax(-1) * share
        return matrix.scatter_add_(2, keys.expand_as(diag), diag)


def read_rows(heads: HeadRows, rows: Tensor) -> Work[RowSample]:
    """The statistics of these rows, tile by tile."""
    view = heads.view
    positions = torch.arange(view.num_tokens, dtype=heads.dtype, device=rows.device)
    found: list[RowStatistics] = []
    row_sum = torch.zeros(view.num_heads, view.num_tokens, dtype=torch.float64, device=rows.device)
    for tile in row_tiles(view, len(rows)):
        log_p = heads.log_rows(rows[tile])
        distance = (rows[tile].unsqueeze(1).to(positions) - positions).abs_()
        read = row_statistics(log_p, distance)
        found.append(RowStatistics(*(part.double() for part in read)))
        row_sum += log_p.exp_().sum(1)
        yield
    columns = (torch.cat(parts, dim=1) for parts in zip(*found, strict=True))
    return RowSample(rows, RowStatistics(*columns), row_sum)


def choose_rows(view: HeadView, count: int, seed: int) -> Tensor:
    """All rows, or so many drawn without replacement, in ascending order."""
    if count >= view.num_tokens:
        return torch.arange(view.num_tokens, device=view.q.device)
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(view.num_tokens, generator=generator)[:count]
    return chosen.sort().values.to(view.q.device)


def row_tiles(view: HeadView, num_rows: int) -> Iterator[slice]:
    """So many rows cut into tiles that fit TILE_BYTES, at least one."""
    fitting = TILE_BYTES // (view.num_heads * view.num_tokens * _FLOAT64_BYTES)
    size = max(1, fitting)
    for start in range(0, num_rows, size):
        yield slice(start, min(start + size, num_rows))


def mix_by_row(view: HeadView) -> Tensor:
    """The share of LLN of every head and row: [H, N] float64."""
    assert view.mix is not None, "asked for only where there is a mix"
    mix = view.mix.to(view.q.device, torch.float64)
    return mix.expand(view.num_tokens, view.num_heads).t()
