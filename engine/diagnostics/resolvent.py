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

from engine.diagnostics.lapack import eigenpairs, one_thread
from engine.diagnostics.work import Work

if TYPE_CHECKING:
    from engine.diagnostics.heads import Heads


class Resolvent:
    """Of the heads' attention matrices, each at a shift of its own."""

    def __init__(self, heads: Heads, shifts: Tensor) -> None:
        assert heads.blocks is not None, "needs blocks"
        self._heads = heads
        self._blocks = heads.blocks
        self.shifts = shifts  # [H]
        self._factors: list[tuple[slice, Tensor, Tensor]] = []
        self._solved: Tensor  # [H, N, columns] (s - A)^-1 U
        self._small: Tensor  # [H, columns, columns] (1 - V^T (s - A)^-1 U)^-1
        self._kappa: Tensor | None = None

    def factorise(self) -> Work[None]:
        """To be done before the first solve."""
        width = self._blocks.width
        shifts = self.shifts.view(-1, 1, 1)
        if self._has_channels:
            self._kappa = (yield from self._heads.factors()).kappa
        to_sinks = []
        for tile, diag in self._heads.diag_tiles():
            less = self._less(diag, tile)
            shifted = less[..., :width]
            shifted.diagonal(dim1=-2, dim2=-1).add_(shifts)
            with one_thread():
                # Of the transpose, which is what LAPACK makes of rows without turning them over.
                lu, pivots = torch.linalg.lu_factor(shifted.cpu().mT)
            self._factors.append((tile, lu.to(diag.device), pivots.to(diag.device)))
            to_sinks.append(self._blocks.flat(less[..., width:].neg(), tile))
            yield
        arriving = [torch.cat(to_sinks, dim=1)]
        if self._has_channels:
            pi = (yield from self._heads.factors()).pi
            arriving.append(pi * self._heads.mix().unsqueeze(-1))
        u = torch.cat(arriving, dim=-1)
        self._solved = yield from self._solve_blocks(u)
        ones = torch.eye(u.shape[-1], dtype=u.dtype, device=u.device)
        self._small = torch.linalg.inv(ones - self._leaving(self._solved))

    def solve(self, vectors: Tensor) -> Work[Tensor]:
        """(s - P)^-1 V in float64, V of shape [H, N, columns]."""
        vectors = vectors.double()
        solved = yield from self._solve_blocks(vectors)
        return solved + self._solved @ (self._small @ self._leaving(solved))

    def solve_transposed(self, vectors: Tensor) -> Work[Tensor]:
        """(s - P)^-T V."""
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
        values, vectors = eigenpairs(self._small @ self._leaving(twice))
        order = values.abs().argsort(dim=1, descending=True)[:, :count]
        chosen = vectors.gather(2, order.unsqueeze(1).expand(-1, vectors.shape[1], -1))
        parts = torch.cat([chosen.real, chosen.imag], dim=2).to(self._solved)
        small = torch.linalg.svd(parts, full_matrices=False).U[..., :count]
        leading: Tensor = self._solved @ small
        return leading

    @property
    def _has_channels(self) -> bool:
        return self._heads.view.has_channels

    def _less(self, diag: Tensor, tile: slice) -> Tensor:
        """-A and -U's part of the sinks, in float64: Diag, whose rows are made to add up to 1 also
        in this type, or the largest eigenvalue might not be 1, times its share."""
        less = diag.double()
        factor: Tensor | float = -1.0
        if less.dtype != diag.dtype:
            factor = -1 / less.sum(-1, keepdim=True).clamp_min(0.5)  # 0 beyond the end of the text
        if self._has_channels:
            factor = factor * (1 - self._blocks.rows(self._heads.mix().unsqueeze(-1), tile))
        return less.mul_(factor) if less.dtype != diag.dtype else less * factor

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
            spread = gathered.new_zeros(len(gathered), self._heads.num_tokens, gathered.shape[-1])
        spread[:, sinks] += gathered[:, : len(sinks)]
        return spread

    def _solve_blocks(self, vectors: Tensor, *, transposed: bool = False) -> Work[Tensor]:
        out = torch.empty_like(vectors)
        for tile, lu, pivots in self._factors:
            rows = self._blocks.rows(vectors, tile)
            with one_thread():
                solved = torch.linalg.lu_solve(lu, pivots, rows, adjoint=not transposed)
            out[:, self._blocks.tokens(tile)] = self._blocks.flat(solved, tile)
            yield
        return out
