"""P, P^T and (s - P)^-1 times a few vectors, without the matrix P.

P and P^T are linear for all kinds but softmax, whose matrix is kept for short texts and else
recomputed, a few rows at a time. (s - P)^-1 is exact and linear for kinds with
blocks: P = A + U V^T with A block-diagonal and few columns U, one for each sink, which every block
sees, and one for each of LLN's channels. So it takes the LU factors of every block of s - A and one
small system (Woodbury). Near an eigenvalue it magnifies what belongs to that eigenvalue, however
close the other eigenvalues are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import torch
from torch import Tensor

from engine.diagnostics.head_view import HeadView
from engine.diagnostics.linear_algebra import leading_parts, one_thread
from engine.diagnostics.lln_diag import Blocks, Factors
from engine.diagnostics.rows import HeadRows, row_tiles
from engine.steps import Steps

DiagTiles: TypeAlias = Iterator[tuple[slice, Tensor]]
"""Diag's weights, some blocks at a time."""


class AttentionOperator:
    def __init__(
        self,
        view: HeadView,
        factors: Factors | None,
        blocks: Blocks | None,
        diag_tiles: Callable[[], DiagTiles] | None,
        matrix: Tensor | None = None,
    ) -> None:
        """`factors` for kinds with LLN, `blocks` and `diag_tiles` for kinds with Diag, the `matrix`
        for softmax if it is kept."""
        self.view = view
        self._factors = factors
        self._blocks = blocks
        self._diag_tiles = diag_tiles
        self._matrix = matrix
        self._rows = HeadRows(view, None, None) if view.attention == "softmax" else None

    def __call__(self, vectors: Tensor) -> Steps[Tensor]:
        """P V, for V [H, N, columns] in the type of the weights or float64, as the result is."""
        match self.view.attention:
            case "softmax":
                return (yield from self._softmax(vectors))
            case "lln":
                yield
                return self._lln(vectors)
            case "block_diagonal":
                return (yield from self._diag(vectors))
            case "lln_diag":
                share = self.view.lln_share().unsqueeze(-1).to(vectors)
                diag = yield from self._diag(vectors)
                return diag.lerp_(self._lln(vectors), share)

    def transposed(self, vectors: Tensor) -> Steps[Tensor]:
        """P^T V."""
        match self.view.attention:
            case "softmax":
                return (yield from self._softmax_transposed(vectors))
            case "lln":
                yield
                return self._lln_transposed(vectors)
            case "block_diagonal":
                return (yield from self._diag_transposed(vectors))
            case "lln_diag":
                share = self.view.lln_share().unsqueeze(-1).to(vectors)
                diag = yield from self._diag_transposed((1 - share) * vectors)
                return diag.add_(self._lln_transposed(share * vectors))

    def gram(self, vectors: Tensor) -> Steps[Tensor]:
        """P^T P V."""
        if self._blocks is None:
            return (yield from self.transposed((yield from self(vectors))))
        share = lln = None
        if self.view.attention == "lln_diag":
            share = self._blocks.split(self.view.lln_share().unsqueeze(-1).to(vectors))
            lln = self._blocks.split(self._lln(vectors))
        shown, arriving = self._shown(vectors), self._empty_by_key(vectors)
        # P and P^T block by block, to fetch the weights once.
        for blocks, weights in self._tiles():
            rows = (weights @ shown[:, blocks]).to(vectors)
            if share is not None and lln is not None:
                # The image of the vectors replaces LLN's part.
                rows = torch.lerp(rows, lln[:, blocks], share[:, blocks], out=lln[:, blocks])
                rows = rows * (1 - share[:, blocks])
            arriving[:, blocks] = weights.mT @ rows.to(weights)
            yield
        out = self._sum_by_token(arriving).to(vectors)
        if share is None or lln is None:
            return out
        image = lln.mul_(share).flatten(1, 2)[:, : self.view.num_tokens]
        return out.add_(self._lln_transposed(image))

    def _lln(self, vectors: Tensor) -> Tensor:
        assert self._factors is not None, "LLN has factors"
        pi, kappa = self._factors
        return (pi @ (kappa @ vectors.to(kappa))).to(vectors)

    def _lln_transposed(self, vectors: Tensor) -> Tensor:
        assert self._factors is not None, "LLN has factors"
        pi, kappa = self._factors
        return (kappa.mT @ (pi.mT @ vectors.to(pi))).to(vectors)

    def _diag(self, vectors: Tensor) -> Steps[Tensor]:
        assert self._blocks is not None, "Diag has blocks"
        shown = self._shown(vectors)
        rows = torch.empty_like(shown[:, :, : self._blocks.width])
        for blocks, weights in self._tiles():
            rows[:, blocks] = weights @ shown[:, blocks]
            yield
        return rows.flatten(1, 2)[:, : self.view.num_tokens].to(vectors)

    def _diag_transposed(self, vectors: Tensor) -> Steps[Tensor]:
        assert self._blocks is not None, "Diag has blocks"
        arriving = self._empty_by_key(vectors)
        rows = self._blocks.split(vectors).to(arriving)
        for blocks, weights in self._tiles():
            arriving[:, blocks] = weights.mT @ rows[:, blocks]
            yield
        return self._sum_by_token(arriving).to(vectors)

    def _tiles(self) -> DiagTiles:
        assert self._diag_tiles is not None, "Diag has weights"
        return self._diag_tiles()

    def _shown(self, vectors: Tensor) -> Tensor:
        """The vectors at every block's keys, typed as the weights: [H, blocks, keys, columns]."""
        assert self._blocks is not None, "Diag has blocks"
        return vectors.to(self._blocks.dtype)[:, self._blocks.keys]

    def _empty_by_key(self, vectors: Tensor) -> Tensor:
        """Memory for what each block adds to its keys: [H, blocks, keys, columns]."""
        assert self._blocks is not None, "Diag has blocks"
        heads, blocks, _, keys = self._blocks.shape
        return vectors.new_empty(heads, blocks, keys, vectors.shape[-1], dtype=self._blocks.dtype)

    def _sum_by_token(self, by_key: Tensor) -> Tensor:
        """What all blocks add to each token: [H, N, columns]."""
        assert self._blocks is not None, "Diag has blocks"
        width = self._blocks.width
        out = by_key[:, :, :width].flatten(1, 2)[:, : self.view.num_tokens]
        out[:, self._blocks.sinks] += by_key[:, :, width:].sum(1)
        return out

    def _softmax(self, vectors: Tensor) -> Steps[Tensor]:
        if self._matrix is not None:
            yield
            return (self._matrix @ vectors.to(self._matrix)).to(vectors)
        out = torch.empty_like(vectors)
        for tile in row_tiles(self.view, self.view.num_tokens):
            out[:, tile] = self._softmax_rows(tile, vectors) @ vectors
            yield
        return out

    def _softmax_transposed(self, vectors: Tensor) -> Steps[Tensor]:
        if self._matrix is not None:
            yield
            return (self._matrix.mT @ vectors.to(self._matrix)).to(vectors)
        out = torch.zeros_like(vectors)
        for tile in row_tiles(self.view, self.view.num_tokens):
            out += self._softmax_rows(tile, vectors).mT @ vectors[:, tile]
            yield
        return out

    def _softmax_rows(self, tile: slice, like: Tensor) -> Tensor:
        assert self._rows is not None, "softmax is read in rows"
        rows = torch.arange(tile.start, tile.stop, device=like.device)
        return self._rows.full(rows).to(like)


class Resolvent:
    """(s - P)^-1 of heads with blocks, each with its own shift s.

    A head group keeps its resolvent, so the resolvent refers to no head group: a reference cycle
    would occupy gigabytes until the garbage collector finds it.
    """

    def __init__(self, view: HeadView, blocks: Blocks, shifts: Tensor) -> None:
        self._view = view
        self._blocks = blocks
        self.shifts = shifts  # [H]
        self._lu_tiles: list[tuple[slice, Tensor, Tensor]] = []
        self._solved: Tensor  # [H, N, columns] (s - A)^-1 U
        self._small: Tensor  # [H, columns, columns] (1 - V^T (s - A)^-1 U)^-1
        self._kappa: Tensor | None = None

    def factorise(self, factors: Factors | None, diag_tiles: DiagTiles) -> Steps[None]:
        """Call it before the first solve, with LLN's factors and Diag's weights."""
        blocks, view = self._blocks, self._view
        if factors is not None:
            pi, self._kappa = factors
            arriving = pi * view.lln_share().unsqueeze(-1).to(pi)
        else:
            arriving = torch.empty(
                view.num_heads, view.num_tokens, 0, dtype=blocks.dtype, device=view.q.device
            )
        columns = len(blocks.sinks) + arriving.shape[-1]
        self._solved = arriving.new_empty(view.num_heads, view.num_tokens, columns)
        for tile, diag in diag_tiles:
            less = self._less(diag, tile)
            lu, pivots = self._lu_of(less[..., : blocks.width])
            self._lu_tiles.append((tile, lu, pivots))
            # Solve for U's rows now, while the LU factors are in cache.
            u = torch.cat([-less[..., blocks.width :], blocks.rows(arriving, tile)], dim=-1)
            solved = _solved_by(lu, pivots, u)
            self._solved[:, blocks.tokens(tile)] = blocks.flat(solved, tile)
            yield
        leaving = self._leaving(self._solved).double()
        ones = torch.eye(columns, dtype=leaving.dtype, device=leaving.device)
        self._small = torch.linalg.inv(ones - leaving).to(arriving)

    def solve(self, vectors: Tensor) -> Steps[Tensor]:
        """(s - P)^-1 V in the type of the weights, V of shape [H, N, columns]."""
        vectors = vectors.to(self._solved)
        solved = yield from self._solve_blocks(vectors)
        return solved + self._solved @ (self._small @ self._leaving(solved))

    def solve_transposed(self, vectors: Tensor) -> Steps[Tensor]:
        """(s - P)^-T V, likewise."""
        vectors = vectors.to(self._solved)
        inner = self._small.mT @ (self._solved.mT @ vectors)
        return (yield from self._solve_blocks(vectors + self._returning(inner), transposed=True))

    def leading(self, count: int) -> Steps[Tensor]:
        """Vectors near the eigenvectors of P next to the shift: [H, N, count].

        An eigenvector is y = (x - A)^-1 U c with (1 - M(x)) c = 0, M(x) = V^T (x - A)^-1 U. To
        first order about the shift, that is a small eigenvalue problem.
        """
        if self._solved.shape[-1] == 0:
            return self._solved  # nothing joins the blocks
        twice = yield from self._solve_blocks(self._solved)
        parts = leading_parts(self._small @ self._leaving(twice), slice(count))
        small = torch.linalg.svd(parts.to(self._solved), full_matrices=False).U[..., :count]
        leading: Tensor = self._solved @ small
        return leading

    def _lu_of(self, less: Tensor) -> tuple[Tensor, Tensor]:
        """LU of (s - A)^T in some blocks, given -A: LAPACK stores columns, so it factorises the
        transpose of row-major blocks without copying them."""
        less.diagonal(dim1=-2, dim2=-1).add_(self.shifts.view(-1, 1, 1).to(less))
        with one_thread():
            lu, pivots = torch.linalg.lu_factor(less.cpu().mT)
        return lu.to(less.device), pivots.to(less.device)

    def _less(self, diag: Tensor, tile: slice) -> Tensor:
        """-A, and -U of the sinks: Diag times its share, negated."""
        if not self._view.has_channels:
            return diag.neg()
        return diag * (self._blocks.rows(self._view.lln_share().unsqueeze(-1), tile) - 1).to(diag)

    def _leaving(self, vectors: Tensor) -> Tensor:
        """V^T x: what reaches the sinks and the channels."""
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

    def _solve_blocks(self, vectors: Tensor, *, transposed: bool = False) -> Steps[Tensor]:
        out = torch.empty_like(vectors)
        for tile, lu, pivots in self._lu_tiles:
            rows = self._blocks.rows(vectors, tile)
            solved = _solved_by(lu, pivots, rows, transposed=transposed)
            out[:, self._blocks.tokens(tile)] = self._blocks.flat(solved, tile)
            yield
        return out


def _solved_by(lu: Tensor, pivots: Tensor, rows: Tensor, *, transposed: bool = False) -> Tensor:
    with one_thread():
        solved: Tensor = torch.linalg.lu_solve(lu, pivots, rows, adjoint=not transposed)
    return solved
