"""P and P^T times a few vectors, without P: linear for all kinds but softmax."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from engine.diagnostics.blocks import Blocks
from engine.diagnostics.factors import Factors
from engine.diagnostics.rows import HeadRows, mix_by_row, row_tiles
from engine.diagnostics.view import HeadView
from engine.diagnostics.work import Work

DiagTiles = Callable[[], Iterator[tuple[slice, Tensor]]]


class AttentionOperator:
    def __init__(
        self,
        view: HeadView,
        factors: Factors | None,
        blocks: Blocks | None,
        diag_tiles: DiagTiles | None,
    ) -> None:
        """`diag_tiles` are Diag's weights, some blocks at a time, where there are blocks."""
        self.view = view
        self._factors = factors
        self._blocks = blocks
        self._diag_tiles = diag_tiles
        self._rows = HeadRows(view, None, None) if view.attention == "softmax" else None

    def __call__(self, vectors: Tensor) -> Work[Tensor]:
        """P V, V of shape [H, N, columns]; like the weights or in float64, as the result is."""
        match self.view.attention:
            case "softmax":
                return (yield from self._softmax(vectors))
            case "lln":
                yield
                return self._lln(vectors)
            case "block_diagonal":
                return (yield from self._diag(vectors))
            case "lln_diag":
                share = mix_by_row(self.view).unsqueeze(-1).to(vectors)
                diag = yield from self._diag(vectors)
                return diag.lerp_(self._lln(vectors), share)

    def transposed(self, vectors: Tensor) -> Work[Tensor]:
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
                share = mix_by_row(self.view).unsqueeze(-1).to(vectors)
                diag = yield from self._diag_transposed((1 - share) * vectors)
                return diag.add_(self._lln_transposed(share * vectors))

    def gram(self, vectors: Tensor) -> Work[Tensor]:
        """P^T P V."""
        if self._blocks is None:
            return (yield from self.transposed((yield from self(vectors))))
        share = lln = None
        if self.view.attention == "lln_diag":
            share = self._blocks.split(mix_by_row(self.view).unsqueeze(-1).to(vectors))
            lln = self._blocks.split(self._lln(vectors))
        shown, arriving = self._shown(vectors), self._nothing_by_key(vectors)
        # There and back block by block, so that the weights are fetched once.
        for blocks, weights in self._tiles():
            rows = (weights @ shown[:, blocks]).to(vectors)
            if share is not None and lln is not None:
                # Where LLN's part was, the image of the vectors comes to be.
                rows = torch.lerp(rows, lln[:, blocks], share[:, blocks], out=lln[:, blocks])
                rows = rows * (1 - share[:, blocks])
            arriving[:, blocks] = weights.mT @ rows.to(weights)
            yield
        out = self._arrived(arriving).to(vectors)
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

    def _diag(self, vectors: Tensor) -> Work[Tensor]:
        assert self._blocks is not None, "Diag has blocks"
        shown = self._shown(vectors)
        rows = torch.empty_like(shown[:, :, : self._blocks.width])
        for blocks, weights in self._tiles():
            rows[:, blocks] = weights @ shown[:, blocks]
            yield
        return rows.flatten(1, 2)[:, : self.view.num_tokens].to(vectors)

    def _diag_transposed(self, vectors: Tensor) -> Work[Tensor]:
        assert self._blocks is not None, "Diag has blocks"
        arriving = self._nothing_by_key(vectors)
        rows = self._blocks.split(vectors).to(arriving)
        for blocks, weights in self._tiles():
            arriving[:, blocks] = weights.mT @ rows[:, blocks]
            yield
        return self._arrived(arriving).to(vectors)

    def _tiles(self) -> Iterator[tuple[slice, Tensor]]:
        assert self._diag_tiles is not None, "Diag has weights"
        return self._diag_tiles()

    def _shown(self, vectors: Tensor) -> Tensor:
        """What every block's keys are, like the weights: [H, blocks, keys, columns]."""
        assert self._blocks is not None, "Diag has blocks"
        return vectors.to(self._blocks.dtype)[:, self._blocks.keys]

    def _nothing_by_key(self, vectors: Tensor) -> Tensor:
        """Where to put what blocks give back to their keys: [H, blocks, keys, columns]."""
        assert self._blocks is not None, "Diag has blocks"
        heads, blocks, _, keys = self._blocks.shape
        return vectors.new_empty(heads, blocks, keys, vectors.shape[-1], dtype=self._blocks.dtype)

    def _arrived(self, by_key: Tensor) -> Tensor:
        """The same by token: [H, N, columns]."""
        assert self._blocks is not None, "Diag has blocks"
        width = self._blocks.width
        out = by_key[:, :, :width].flatten(1, 2)[:, : self.view.num_tokens]
        out[:, self._blocks.sinks] += by_key[:, :, width:].sum(1)
        return out

    def _softmax(self, vectors: Tensor) -> Work[Tensor]:
        out = torch.empty_like(vectors)
        for tile in row_tiles(self.view, self.view.num_tokens):
            out[:, tile] = self._softmax_rows(tile, vectors) @ vectors
            yield
        return out

    def _softmax_transposed(self, vectors: Tensor) -> Work[Tensor]:
        out = torch.zeros_like(vectors)
        for tile in row_tiles(self.view, self.view.num_tokens):
            out += self._softmax_rows(tile, vectors).mT @ vectors[:, tile]
            yield
        return out

    def _softmax_rows(self, tile: slice, like: Tensor) -> Tensor:
        assert self._rows is not None, "softmax is read in rows"
        rows = torch.arange(tile.start, tile.stop, device=like.device)
        return self._rows.full(rows).to(like)
