"""One head reading one document, ready to sum any rectangle of its attention matrix P.

- LLN: P = pi kappa, so a rectangle's sum is the product of two differences of prefix sums.
- Diag: the window's own rows, a block at a time; a row has the keys of its block and the sinks.
- LLN+Diag: the mix of the two, with LLN's share inside the prefix sums.
- Softmax: rows in tiles, since each needs all keys for its denominator.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.diagnostics.head_view import HeadView
from engine.diagnostics.lln_diag import Blocks, lln_factors
from engine.steps import Steps

SCORES_A_STEP = 2**22
"""Scores computed between two pauses: some tens of milliseconds on a CPU."""


@dataclass(frozen=True, eq=False)
class Prefixes:
    """Prefix sums of LLN's factors over the tokens: the sum over any range is one difference."""

    pi: Tensor  # [N + 1, D] float64, every row times its token's share of LLN
    kappa: Tensor  # [N + 1, D] float64

    def rows(self, start: int, end: int) -> Tensor:
        """pi itself, times LLN's share: [end - start, D]."""
        return self.pi[start : end + 1].diff(dim=0)

    def keys(self, start: int, end: int) -> Tensor:
        """kappa itself, transposed: [end - start, D]."""
        return self.kappa[start : end + 1].diff(dim=0)


@dataclass(frozen=True, eq=False)
class HeadAttention:
    """One head's attention matrix, as sums and entries of any window of it."""

    view: HeadView  # of this head alone
    prefixes: Prefixes | None  # None where there is no LLN branch

    @classmethod
    def of(cls, view: HeadView) -> HeadAttention:
        assert view.num_heads == 1, "one head at a time"
        if not view.has_channels:
            return cls(view, None)
        pi, kappa = lln_factors(view)
        share = view.lln_share()[0].unsqueeze(-1)
        return cls(view, Prefixes(_prefix_sums(pi[0] * share), _prefix_sums(kappa[0].t())))

    @property
    def num_bytes(self) -> int:
        """At most `head_attention_bytes`."""
        tensors = [self.view.q, self.view.k]
        if self.prefixes is not None:
            tensors += [self.prefixes.pi, self.prefixes.kappa]
        return sum(tensor.nbytes for tensor in tensors)

    def sums(self, rows: Tensor, columns: Tensor) -> Steps[Tensor]:
        """The sums of P over every cell between these edges: [len(rows) - 1, len(columns) - 1]."""
        cells = Cells.between(rows, columns, self.view.num_tokens)
        if self.prefixes is not None:
            row_sums = self.prefixes.pi[rows].diff(dim=0)
            cells.sums.addmm_(row_sums, self.prefixes.kappa[columns].diff(dim=0).t())
        if self.view.has_blocks:
            yield from self._add_blocks(cells)
        elif self.view.attention == "softmax":
            yield from self._add_softmax(cells)
        return cells.sums

    def _add_blocks(self, cells: Cells) -> Steps[None]:
        blocks = Blocks(self.view)
        size, done = blocks.width, 0
        for block in range(cells.first_row // size, -(-cells.end_row // size)):
            start = max(block * size, cells.first_row)
            end = min((block + 1) * size, cells.end_row)
            keys = blocks.visible_keys(block).sort().values
            cells.add(start, self._diag(start, end, keys), keys)
            done += (end - start) * len(keys)
            if done >= SCORES_A_STEP:
                done = 0
                yield

    def _add_softmax(self, cells: Cells) -> Steps[None]:
        length = self.view.num_tokens
        keys = torch.arange(length, device=self.view.q.device)
        step = max(1, SCORES_A_STEP // length)
        for start in range(cells.first_row, cells.end_row, step):
            end = min(start + step, cells.end_row)
            cells.add(start, self._softmax(start, end), keys)
            yield

    def entries(self, start: int, end: int, columns: slice) -> Tensor:
        """P itself, of these rows and columns: [end - start, columns]."""
        if self.view.attention == "softmax":
            return self._softmax(start, end)[:, columns]
        width = columns.stop - columns.start
        matrix = self._scratch(end - start, width)
        if self.prefixes is not None:
            keys = self.prefixes.keys(columns.start, columns.stop)
            matrix += self.prefixes.rows(start, end) @ keys.t()
        if self.view.has_blocks:
            self._add_diag_entries(matrix, start, end, columns)
        return matrix

    def _add_diag_entries(self, matrix: Tensor, start: int, end: int, columns: slice) -> None:
        blocks = Blocks(self.view)
        size = blocks.width
        for block in range(start // size, -(-end // size)):
            first, last = max(block * size, start), min((block + 1) * size, end)
            keys = blocks.visible_keys(block).sort().values
            inside = (keys >= columns.start) & (keys < columns.stop)
            diag = self._diag(first, last, keys)[:, inside]
            matrix[first - start : last - start].index_add_(1, keys[inside] - columns.start, diag)

    def _diag(self, start: int, end: int, keys: Tensor) -> Tensor:
        """The rows' softmax over the keys of their block, times Diag's share."""
        weights = self._scores(start, end, self.view.k[keys, 0]).softmax(-1)
        if self.view.has_channels:
            weights *= 1 - self.view.lln_share()[0, start:end].unsqueeze(-1)
        return weights

    def _softmax(self, start: int, end: int) -> Tensor:
        return self._scores(start, end, self.view.k[:, 0]).softmax(-1)

    def _scores(self, start: int, end: int, keys: Tensor) -> Tensor:
        q = self.view.q[start:end, 0].double() * self.view.scale
        return q @ keys.double().t()

    def _scratch(self, height: int, width: int) -> Tensor:
        return torch.zeros(height, width, dtype=torch.float64, device=self.view.q.device)


@dataclass(frozen=True, eq=False)
class Cells:
    """A window divided into cells, and the sum of each so far."""

    sums: Tensor  # [rows, columns] float64
    first_row: int
    end_row: int
    row_cells: Tensor  # [end_row - first_row] the cell of each of the window's rows
    column_cells: Tensor  # [N] the cell of each key; outside the window, the number of cells

    @classmethod
    def between(cls, rows: Tensor, columns: Tensor, length: int) -> Cells:
        height, width = len(rows) - 1, len(columns) - 1
        column_cells = torch.full((length,), width, device=columns.device)
        first, end = int(columns[0]), int(columns[-1])
        column_cells[first:end] = _cells_between(columns)
        sums = torch.zeros(height, width, dtype=torch.float64, device=rows.device)
        return cls(sums, int(rows[0]), int(rows[-1]), _cells_between(rows), column_cells)

    def add(self, start: int, weights: Tensor, keys: Tensor) -> None:
        """Add rows of P that begin at `start` and have these keys."""
        in_rows = self.row_cells[start - self.first_row :][: len(weights)]
        first, last = int(in_rows[0]), int(in_rows[-1])
        by_row = weights.new_zeros(last + 1 - first, weights.shape[1])
        by_row.index_add_(0, in_rows - first, weights)
        in_columns = self.column_cells[keys]
        inside = in_columns < self.sums.shape[1]
        self.sums[first : last + 1].index_add_(1, in_columns[inside], by_row[:, inside])


def head_attention_bytes(num_tokens: int, head_size: int, dtype: torch.dtype) -> int:
    """A head's queries, keys and prefix sums."""
    of_column = num_tokens * dtype.itemsize + (num_tokens + 1) * torch.float64.itemsize
    return 2 * head_size * of_column


def _prefix_sums(rows: Tensor) -> Tensor:
    zero = rows.new_zeros(1, rows.shape[1])
    return torch.cat([zero, rows.cumsum(0)])


def _cells_between(edges: Tensor) -> Tensor:
    """The cell of each position from the first edge to the last."""
    return torch.repeat_interleave(torch.arange(len(edges) - 1, device=edges.device), edges.diff())
