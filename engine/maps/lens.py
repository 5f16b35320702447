"""One head reading one document, ready to sum any rectangle of its attention matrix P.

- LLN: P = pi kappa, so a rectangle's sum is the product of two differences of prefix sums.
- Diag: the window's own rows, a block at a time; a row is no longer than a block and its sinks.
- LLN+Diag: the mix of the two, with the share of LLN inside the prefix sums.
- Softmax: rows streamed in tiles, since each needs all keys for its denominator.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.diagnostics.factors import lln_factors
from engine.diagnostics.view import HeadView
from engine.maps.pauses import PAUSE, InSteps

SCORES_A_STEP = 2**22
"""Between two pauses: some tens of milliseconds on a CPU."""


@dataclass(frozen=True, eq=False)
class Prefixes:
    """LLN's factors, summed over the tokens before each: any range is one difference."""

    pi: Tensor  # [N + 1, D] float64, every row times its token's share of LLN
    kappa: Tensor  # [N + 1, D] float64

    def rows(self, start: int, end: int) -> Tensor:
        """pi itself, times LLN's share: [end - start, D]."""
        return self.pi[start : end + 1].diff(dim=0)

    def keys(self, start: int, end: int) -> Tensor:
        """kappa itself, transposed: [end - start, D]."""
        return self.kappa[start : end + 1].diff(dim=0)


@dataclass(frozen=True, eq=False)
class HeadLens:
    view: HeadView  # of this head alone
    prefixes: Prefixes | None  # None where there is no LLN branch

    @classmethod
    def of(cls, view: HeadView) -> HeadLens:
        assert view.num_heads == 1, "a lens looks at one head"
        if not view.has_channels:
            return cls(view, None)
        pi, kappa = lln_factors(view)
        share = lln_share(view).unsqueeze(-1)
        return cls(view, Prefixes(_prefix_sums(pi[0] * share), _prefix_sums(kappa[0].t())))

    @property
    def num_bytes(self) -> int:
        """At most `lens_bytes`."""
        tensors = [self.view.q, self.view.k]
        if self.prefixes is not None:
            tensors += [self.prefixes.pi, self.prefixes.kappa]
        return sum(tensor.nbytes for tensor in tensors)

    def sums(self, rows: Tensor, columns: Tensor) -> InSteps[Tensor]:
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

    def _add_blocks(self, cells: Cells) -> InSteps[None]:
        size, done = self.view.block_size, 0
        for block in range(cells.first_row // size, -(-cells.end_row // size)):
            start = max(block * size, cells.first_row)
            end = min((block + 1) * size, cells.end_row)
            keys = visible_keys(self.view, block)
            cells.add(start, self._diag(start, end, keys), keys)
            done += (end - start) * len(keys)
            if done >= SCORES_A_STEP:
                done = 0
                yield PAUSE

    def _add_softmax(self, cells: Cells) -> InSteps[None]:
        length = self.view.num_tokens
        keys = torch.arange(length, device=self.view.q.device)
        step = max(1, SCORES_A_STEP // length)
        for start in range(cells.first_row, cells.end_row, step):
            end = min(start + step, cells.end_row)
            cells.add(start, self._softmax(start, end), keys)
            yield PAUSE

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
        size = self.view.block_size
        for block in range(start // size, -(-end // size)):
            first, last = max(block * size, start), min((block + 1) * size, end)
            keys = visible_keys(self.view, block)
            inside = (keys >= columns.start) & (keys < columns.stop)
            diag = self._diag(first, last, keys)[:, inside]
            matrix[first - start : last - start].index_add_(1, keys[inside] - columns.start, diag)

    def _diag(self, start: int, end: int, keys: Tensor) -> Tensor:
        """The rows' softmax over the keys of their block, times what LLN leaves to it."""
        weights = self._scores(start, end, self.view.k[keys, 0]).softmax(-1)
        if self.view.has_channels:
            weights *= 1 - lln_share(self.view)[start:end].unsqueeze(-1)
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
    """A window cut into cells, and their sums as they grow."""

    sums: Tensor  # [rows, columns] float64
    first_row: int
    end_row: int
    row_cells: Tensor  # [end_row - first_row] the cell of each of the window's rows
    column_cells: Tensor  # [N] the cell of each key; one beyond the last outside the window

    @classmethod
    def between(cls, rows: Tensor, columns: Tensor, length: int) -> Cells:
        height, width = len(rows) - 1, len(columns) - 1
        column_cells = torch.full((length,), width, device=columns.device)
        first, end = int(columns[0]), int(columns[-1])
        column_cells[first:end] = _cells_between(columns)
        sums = torch.zeros(height, width, dtype=torch.float64, device=rows.device)
        return cls(sums, int(rows[0]), int(rows[-1]), _cells_between(rows), column_cells)

    def add(self, start: int, weights: Tensor, keys: Tensor) -> None:
        """Add rows of P that begin at `start` and hold these keys."""
        in_rows = self.row_cells[start - self.first_row :][: len(weights)]
        first, last = int(in_rows[0]), int(in_rows[-1])
        by_row = weights.new_zeros(last + 1 - first, weights.shape[1])
        by_row.index_add_(0, in_rows - first, weights)
        in_columns = self.column_cells[keys]
        inside = in_columns < self.sums.shape[1]
        self.sums[first : last + 1].index_add_(1, in_columns[inside], by_row[:, inside])


def lens_bytes(num_tokens: int, head_size: int, dtype: torch.dtype) -> int:
    """Of a head's queries, keys and prefix sums."""
    of_column = num_tokens * dtype.itemsize + (num_tokens + 1) * torch.float64.itemsize
    return 2 * head_size * of_column


def visible_keys(view: HeadView, block: int) -> Tensor:
    """The keys that Diag shows to every query of a block: its own and the sinks, each once."""
    own = range(block * view.block_size, min((block + 1) * view.block_size, view.num_tokens))
    return torch.tensor(sorted({*own, *view.sinks}), device=view.q.device)


def lln_share(view: HeadView) -> Tensor:
    """The share of LLN in each of one head's rows: [N] float64."""
    if view.mix is None or view.attention != "lln_diag":
        return torch.ones(view.num_tokens, dtype=torch.float64, device=view.q.device)
    mix = view.mix.to(view.q.device, torch.float64)
    return mix.expand(view.num_tokens, 1)[:, 0]


def _prefix_sums(rows: Tensor) -> Tensor:
    zero = rows.new_zeros(1, rows.shape[1])
    return torch.cat([zero, rows.cumsum(0)])


def _cells_between(edges: Tensor) -> Tensor:
    """The cell of each position from the first edge to the last."""
    return torch.repeat_interleave(torch.arange(len(edges) - 1, device=edges.device), edges.diff())
