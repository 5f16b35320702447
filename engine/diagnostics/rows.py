"""Attention rows, a few at a time, and the numbers read off each: no array here is ever N x N."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import groupby
from statistics import NormalDist
from typing import NamedTuple

import torch
from torch import Tensor

from engine.diagnostics.head_view import HeadView
from engine.diagnostics.lln_diag import Blocks, Factors
from engine.diagnostics.sampling import row_weights
from engine.steps import Steps

TENTHS = torch.arange(1, 10, dtype=torch.float64) / 10
DECILES = tuple(NormalDist().inv_cdf(share) for share in TENTHS.tolist())

TILE_BYTES = 2**20
_FLOAT64_BYTES = 8
_SMALLEST_OF_FLOAT32 = 1e-35
_FLAT_UNITS = 64
"""A spread of at most this many units of rounding, relative to the mean, counts as none."""


class RowStatistics(NamedTuple):
    """Statistics of single rows, each [H, rows]; of log P over the keys that the row sees."""

    entropy: Tensor
    log_mean: Tensor
    log_variance: Tensor
    skewness: Tensor
    kurtosis: Tensor  # less 3, the normal's
    decile_gap: Tensor  # the largest gap to the normal at its deciles
    collision: Tensor  # sum of squares
    distance: Tensor  # mean |i - j|


class RowSample(NamedTuple):
    """What was read of some rows, or of all."""

    rows: Tensor  # [rows] ascending
    statistics: RowStatistics
    row_sum: Tensor  # [H, N] of all rows, key by key: an estimate where not all were read


class HeadRows:
    """The attention rows of some heads, in the given type unless their weights underflow in it."""

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
                probabilities = self.full(rows)
                # Probabilities that underflowed to 0 count as the smallest number there is.
                return probabilities.clamp_min(torch.finfo(probabilities.dtype).tiny).log_()
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
                share = self.view.lln_share()[:, rows].unsqueeze(-1).to(self.dtype)
                return self._add_diag(self._lln(rows).mul_(share), rows, 1 - share)
            case "block_diagonal":
                empty = self.keys.new_zeros(self.view.num_heads, len(rows), self.view.num_tokens)
                return self._add_diag(empty, rows, torch.ones_like(empty[..., :1]))

    def _lln(self, rows: Tensor) -> Tensor:
        assert self.factors is not None, "this kind of attention has no LLN branch"
        return torch.bmm(self.factors.pi[:, rows], self.factors.kappa)

    def _add_diag(self, matrix: Tensor, rows: Tensor, share: Tensor) -> Tensor:
        """Add share * Diag to these rows of a matrix, in place.

        Neighbouring rows of one block share its keys, which would otherwise be copied for each row.
        """
        assert self.blocks is not None, "this kind of attention has no blocks"
        start = 0
        for block, count in _runs(rows // self.blocks.width):
            own = slice(start, start + count)
            start += count
            keys = self.blocks.keys[block]
            scores = torch.bmm(self.queries(rows[own]), self.keys[:, :, keys])
            scores.masked_fill_(~self.blocks.seen[block], -torch.inf)
            diag = scores.softmax(-1) * share[:, own]
            matrix[:, own].scatter_add_(2, keys.expand_as(diag), diag)
        return matrix


def _runs(values: Tensor) -> Iterator[tuple[int, int]]:
    """Each value and how many times it follows itself."""
    for value, run in groupby(values.tolist()):
        yield value, len(list(run))


def row_tiles(view: HeadView, num_rows: int) -> Iterator[slice]:
    """Tiles of rows that fit TILE_BYTES, each of at least one row."""
    size = max(1, TILE_BYTES // (view.num_heads * view.num_tokens * _FLOAT64_BYTES))
    for start in range(0, num_rows, size):
        yield slice(start, min(start + size, num_rows))


def read_rows(heads: HeadRows, rows: Tensor) -> Steps[RowSample]:
    """The statistics of these rows, tile by tile."""
    view = heads.view
    positions = torch.arange(view.num_tokens, dtype=heads.dtype, device=rows.device)
    found: list[RowStatistics] = []
    row_sum = torch.zeros(view.num_heads, view.num_tokens, dtype=torch.float64, device=rows.device)
    counts = row_weights(len(rows), view.num_tokens).to(rows.device, heads.dtype) * view.num_tokens
    for tile in row_tiles(view, len(rows)):
        log_p = heads.log_rows(rows[tile])
        distance = (rows[tile].unsqueeze(1).to(positions) - positions).abs_()
        read = row_statistics(log_p, distance)
        found.append(RowStatistics(*(part.double() for part in read)))
        row_sum += (counts[tile] @ log_p.exp_()).double()
        yield
    columns = (torch.cat(parts, dim=1) for parts in zip(*found, strict=True))
    return RowSample(rows, RowStatistics(*columns), row_sum)


def row_statistics(log_p: Tensor, distance: Tensor, seen: Tensor | None = None) -> RowStatistics:
    """The statistics of log P [..., keys]. `seen` says which keys count, all by default."""
    p = log_p.exp()
    if seen is not None:
        log_p = log_p.masked_fill(~seen, 0.0)
    count = log_p.shape[-1] if seen is None else seen.sum(-1)
    log_mean = log_p.sum(-1) / count
    centred = log_p - log_mean.unsqueeze(-1)
    if seen is not None:
        centred.masked_fill_(~seen, 0.0)
    squares = centred.square()
    variance = squares.sum(-1) / count
    scratch = torch.empty_like(centred)
    third, fourth = (_dot(squares, other, scratch) / count for other in (centred, squares))
    rounding = _FLAT_UNITS * torch.finfo(log_p.dtype).eps
    is_flat = variance <= rounding**2 * (1 + log_mean.square())
    spread = variance.sqrt()
    gap = _decile_gap(centred, spread, count, seen, scratch)
    return RowStatistics(
        entropy=_dot(p, log_p, scratch).clamp_max(0.0).abs(),
        log_mean=log_mean,
        log_variance=variance,
        skewness=(third / spread**3).masked_fill(is_flat, 0.0),
        kurtosis=(fourth / variance.square() - 3).masked_fill(is_flat, 0.0),
        decile_gap=gap.masked_fill(is_flat, 0.0),
        collision=_dot(p, p, scratch),
        distance=_dot(p, distance.expand_as(p), scratch),
    )


def _dot(x: Tensor, y: Tensor, scratch: Tensor) -> Tensor:
    """The dot product of every row. The products go into `scratch`: the system would have to clear
    new memory first, which takes longer than the products."""
    return torch.mul(x, y, out=scratch).sum(-1)


def _decile_gap(
    centred: Tensor, spread: Tensor, count: int | Tensor, seen: Tensor | None, scratch: Tensor
) -> Tensor:
    """max over k of |share of the row below the normal's k-th decile - k / 10|."""
    below = scratch  # 0 or 1: sums of floats are the fast ones, and exact here
    counts = []
    for decile in DECILES:
        torch.lt(centred, (decile * spread).unsqueeze(-1), out=below)
        if seen is not None:
            below *= seen
        counts.append(below.sum(-1))
    shares = torch.stack(counts, dim=-1)
    shares /= count.unsqueeze(-1) if isinstance(count, Tensor) else count
    return (shares - TENTHS.to(shares)).abs().amax(-1)


def sum_p_log_p(p: Tensor) -> Tensor:
    """The sum of p log p of every row. The logarithm is computed in float32, which is off by a
    relative 1e-7 and takes a fraction of the time."""
    logs = p.float().clamp_min(torch.finfo(torch.float32).tiny).log_().to(p)
    total: Tensor = torch.linalg.vecdot(p, logs)
    return total


def entropy_of_probabilities(probabilities: Tensor) -> Tensor:
    """-sum p log p of every row, where 0 log 0 is 0."""
    entropy: Tensor = torch.special.entr(probabilities).sum(-1)
    return entropy
