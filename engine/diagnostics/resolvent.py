"""(s - P)^-1 for kinds with blocks, exactly and in linear time.

P = A + U V^T with A block-diagonal and few columns U: LLN's channels, where there are any, and
the sinks, which are seen from everywhere. So (s - P)^-1 needs the LU factors of every block of
s - A and one small system (Woodbury). Near an eigenvalue it magnifies what belongs to that
eigenvalue, however close the others crowd.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from engine.diagnostics.lapack import leading_parts, one_thread
from engine.diagnostics.rows import mix_by_row
from engine.diagnostics.work import Work

if TYPE_CHECKING:
    from engine.diagnostics.heads import Heads


class Resolvent:
    """Of the heads' attention matrices, each at a shift of its own.

    Heads keep it, so it keeps no heads: what refers to each other in a circle holds its memory
    until Python looks for circles.
    """

    def __init__(self, heads: Heads, shifts: Tensor) -> None:
        assert heads.blocks is not None, "needs blocks"
        self._view = heads.view
        self._blocks = heads.blocks
        self.shifts = shifts  # [H]
        self._factors: list[tuple[slice, Tensor, Tensor]] = []
        self._solved: Tensor  # [H, N, columns] (s - A)^-1 U
        self._small: Tensor  # [H, columns, columns] (1 - V^T (s - A)^-1 U)^-1
        self._kappa: Tensor | None = None

    def factorise(self, heads: Heads) -> Work[None]:
        """To be done before the first solve, with the heads it was made for."""
        blocks, view = self._blocks, self._view
        if view.has_channels:
            pi, self._kappa = yield from heads.light_factors()
            arriving = pi * mix_by_row(view).unsqueeze(-1).to(pi)
        else:
            arriving = torch.empty(
                view.num_heads, view.num_tokens, 0, dtype=blocks.dtype, device=view.q.device
            )
        columns = len(blocks.sinks) + arriving.shape[-1]
        self._solved = arriving.new_empty(view.num_heads, view.num_tokens, columns)
        for tile, diag in heads.diag_tiles():
            less = self._less(diag, tile)
            lu, pivots = self._factorised(less[..., : blocks.width])
            self._factors.append((tile, lu, pivots))
            # U's rows at once, while the factors are in cache.
            u = torch.cat([-less[..., blocks.width :], blocks.rows(arriving, tile)], dim=-1)
            solved = _solved_by(lu, pivots, u)
            self._solved[:, blocks.tokens(tile)] = blocks.flat(solved, tile)
            yield
        leaving = self._leaving(self._solved).double()
        ones = torch.eye(columns, dtype=leaving.dtype, device=leaving.device)
        self._small = torch.linalg.inv(ones - leaving).to(arriving)

    def solve(self, vectors: Tensor) -> Work[Tensor]:
        """(s - P)^-1 V in the type of the weights, V of shape [H, N, columns]."""
        vectors = vectors.to(self._solved)
        solved = yield from self._solve_blocks(vectors)
        return solved + self._solved @ (self._small @ self._leaving(solved))

    def solve_transposed(self, vectors: Tensor) -> Work[Tensor]:
        """(s - P)^-T V, the same."""
        vectors = vectors.to(self._solved)
        inner = self._small.mT @ (self._solved.mT @ vectors)
        return (yield from self._solve_blocks(vectors + self._returning(inner), transposed=True))

    def leading(self, count: int) -> Work[Tensor]:
        """Vectors near the eigenvectors of P next to the shift: [H, N, count].

        An eigenvector is y = (x - A)^-1 U c with (1 - M(x)) c = 0, M(x) = V^T (x - A)^-1 U. About
        the shift, to first order, that is a small eigenvalue problem.
        """
        if self._solved.shape[-1] == 0:
            return self._solved  # blocks that nothing joins
        twice = yield from self._solve_blocks(self._solved)
        parts = leading_parts(self._small @ self._leaving(twice), slice(count))
        small = torch.linalg.svd(parts.to(self._solved), full_matrices=False).U[..., :count]
        leading: Tensor = self._solved @ small
        return leading

    def _factorised(self, less: Tensor) -> tuple[Tensor, Tensor]:
        """LU of s - A in some blocks; of the transpose, which is what LAPACK makes of rows without
        turning them over."""
        less.diagonal(dim1=-2, dim2=-1).add_(self.shifts.view(-1, 1, 1).to(less))
        with one_thread():
            lu, pivots = torch.linalg.lu_factor(less.cpu().mT)
        return lu.to(less.device), pivots.to(less.device)

    def _less(self, diag: Tensor, tile: slice) -> Tensor:
        """-A and -U's part of the sinks: Diag times its share."""
        if not self._view.has_channels:
            return diag.neg()
        return diag * (self._blocks.rows(mix_by_row(self._view).unsqueeze(-1), tile) - 1).to(diag)

    def _leaving(self, vectors: Tensor) -> Tensor:
        """V^T x: what the sinks and the channels gather."""
        parts = [vectors[:, self._blocks.sinks]]
        if self._kappa is not None:
            parts.append(self._kappa @ vectors)
        return torch.cat(parts, dim=1)

    def _returning(self, gathered: Tensor) -> Tensor:
        """V y."""
        sinks = self._blocks.sinks
        if self._kappa is not None:
            spread = self._kappa.mT @ gathered[:, len(sinks) :]
        else:
            spread = gathered.new_zeros(len(gathered), self._view.num_tokens, gathered.shape[-1])
        spread[:, sinks] += gathered[:, : len(sinks)]
        return spread

    def _solve_blocks(self, vectors: Tensor, *, transposed: bool = False) -> Work[Tensor]:
        out = torch.empty_like(vectors)
        for tile, lu, pivots in self._factors:
            rows = self._blocks.rows(vectors, tile)
            solved = _solved_by(lu, pivots, rows, transposed=transposed)
            out[:, self._blocks.tokens(tile)] = self._blocks.flat(solved, tile)
            yield
        return out


def _solved_by(lu: Tensor, pivots: Tensor, rows: Tensor, *, transposed: bool = False) -> Tensor:
    with one_thread():
        solved: Tensor = torch.linalg.lu_solve(lu, pivots, rows, adjoint=not transposed)
    return solved
