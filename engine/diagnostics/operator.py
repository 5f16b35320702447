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
            share, lln = mix_by_row(self.view).unsqueeze(-1).to(vectors), self._lln(vectors)
        image, out = torch.empty_like(vectors), torch.zeros_like(vectors)
        of_sinks = self._of_sinks(vectors)
        # There and back block by block, so that the weights are fetched once.
        for blocks, weights in self._tiles():
            tokens = self._blocks.tokens(blocks)
            rows = self._gathered(weights, blocks, vectors, of_sinks).to(vectors)
            if share is not None and lln is not None:
                image[:, tokens] = rows.lerp_(lln[:, tokens], share[:, tokens])
                rows = rows * (1 - share[:, tokens])
            self._spread(weights, blocks, rows, out)
            yield
        return out if share is None else out.add_(self._lln_transposed(share * image))

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
        out = torch.empty_like(vectors)
        of_sinks = self._of_sinks(vectors)
        for blocks, weights in self._tiles():
            out[:, self._blocks.tokens(blocks)] = self._gathered(weights, blocks, vectors, of_sinks)
            yield
        return out

    def _diag_transposed(self, vectors: Tensor) -> Work[Tensor]:
        assert self._blocks is not None, "Diag has blocks"
        out = torch.zeros_like(vectors)
        for blocks, weights in self._tiles():
            self._spread(weights, blocks, vectors[:, self._blocks.tokens(blocks)], out)
            yield
        return out

    def _tiles(self) -> Iterator[tuple[slice, Tensor]]:
        assert self._diag_tiles is not None, "Diag has weights"
        return self._diag_tiles()

    def _of_sinks(self, vectors: Tensor) -> Tensor:
        assert self._blocks is not None, "Diag has blocks"
        return vectors[:, self._blocks.sinks].unsqueeze(1).to(self._blocks.dtype)

    def _gathered(
        self, weights: Tensor, blocks: slice, vectors: Tensor, of_sinks: Tensor
    ) -> Tensor:
        """What the rows of some blocks see: [H, tokens of these blocks, columns]."""
        assert self._blocks is not None, "Diag has blocks"
        width = self._blocks.width
        arriving = weights[..., :width] @ self._blocks.rows(vectors, blocks).to(weights)
        arriving += weights[..., width:] @ of_sinks
        return self._blocks.flat(arriving, blocks)

    def _spread(self, weights: Tensor, blocks: slice, rows: Tensor, out: Tensor) -> None:
        """Add to all tokens what the rows of some blocks give back to them."""
        assert self._blocks is not None, "Diag has blocks"
        width = self._blocks.width
        arriving = weights.mT @ self._blocks.split(rows).to(weights)  # [H, blocks, keys, columns]
        own = out[:, self._blocks.tokens(blocks)]
        own.add_(self._blocks.flat(arriving[:, :, :width], blocks))  # += would copy it once more
        out[:, self._blocks.sinks] += arriving[:, :, width:].sum(1)

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
