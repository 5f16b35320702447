"""Some heads of a layer, with what several instruments need worked out once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from engine.diagnostics.base import Effort
from engine.diagnostics.blocks import Blocks
from engine.diagnostics.diag_weights import DiagWeights
from engine.diagnostics.factors import Factors, lln_factors, token_tiles
from engine.diagnostics.grams import Grams, grams_of
from engine.diagnostics.operator import AttentionOperator
from engine.diagnostics.resolvent import Resolvent
from engine.diagnostics.rows import HeadRows, RowSample, choose_rows, mix_by_row, read_rows
from engine.diagnostics.states import States
from engine.diagnostics.statistics import (
    Estimate,
    RowStatistics,
    mean_of,
    row_statistics,
    sum_p_log_p,
)
from engine.diagnostics.view import HeadView
from engine.diagnostics.work import Work, shared

if TYPE_CHECKING:
    from engine.diagnostics.kept import Kept

KEPT_BYTES = 512 * 2**20
"""Diag's weights are kept from one instrument to the next up to this size, and so is what all
heads of a layer leave for those who compare them."""

_JUST_ABOVE_ONE = {torch.float64: 1 + 1e-7, torch.float32: 1 + 1e-4}
"""Shifts. What belongs to the eigenvalue 1 is magnified by one over the distance to it, rounding
with the rest, before it is taken out."""


@dataclass(frozen=True)
class SeenSums:
    """Sums over the keys that Diag shows to a row, of LLN+Diag: each [H, N].

    What lies beyond those keys is LLN alone, so these make linear what would else need all keys.
    """

    p_log_p: Tensor
    p_squared: Tensor
    diag_distance: Tensor
    lln: Tensor
    lln_squared: Tensor
    channel_entropy: Tensor  # sum_c pi_c sum_j -kappa_cj log kappa_cj
    choice_entropy: Tensor  # sum_c -pi_c log pi_c sum_j kappa_cj


class Heads:
    def __init__(
        self,
        view: HeadView,
        effort: Effort,
        states: States | None = None,
        kept: Sequence[Kept] = (),
        room: Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """`room` is where Diag's weights go; with `kept`, they are there already. `dtype` is the
        weights', that of the effort unless told otherwise."""
        self.view = view
        self.effort = effort
        self.dtype = effort.dtype_of(view.num_tokens) if dtype is None else dtype
        self.blocks = Blocks(view, self.dtype) if view.has_blocks else None
        if states is None and view.x is not None:
            states = States(view.x, self.dtype)
        self.states = states
        self.kept = kept
        self.weights: DiagWeights | None = None
        if self.blocks is not None:
            self.weights = DiagWeights(self.blocks, KEPT_BYTES, room, is_full=bool(kept))

    @property
    def num_tokens(self) -> int:
        return self.view.num_tokens

    @property
    def num_heads(self) -> int:
        return self.view.num_heads

    @property
    def reads_all_rows(self) -> bool:
        return self.effort.num_rows(self.num_tokens) == self.num_tokens

    @property
    def is_isolated(self) -> bool:
        """Two or more blocks that never see each other."""
        view = self.view
        return view.attention == "block_diagonal" and view.num_blocks > 1 and not view.sinks

    @shared
    def factors(self) -> Work[Factors]:
        yield
        return lln_factors(self.view)

    @shared
    def grams(self) -> Work[Grams]:
        return (yield from grams_of(self.view))

    @shared
    def light_factors(self) -> Work[Factors]:
        """The same in the type of the weights: for products, which need no more."""
        factors = yield from self.factors()
        return factors.to(self.dtype)

    @shared
    def choice_entropies(self) -> Work[Tensor]:
        """H(pi) of every row: how undecided it is between the channels. [H, N]."""
        pi = (yield from self.factors()).pi
        yield
        parts = [-sum_p_log_p(pi[:, tile]) for tile in token_tiles(self.num_tokens)]
        return torch.cat(parts, dim=1).clamp_min(0.0)

    @shared
    def overlap(self) -> Work[Tensor]:
        """kappa kappa^T: [H, D, D]."""
        factors = yield from self.factors()
        return factors.overlap

    @shared
    def row_reader(self) -> Work[HeadRows]:
        """Rows in the type of the weights."""
        factors = (yield from self.factors()) if self.view.has_channels else None
        return HeadRows(self.view, factors, self.blocks, self.dtype)

    def mean_of_softmax(self, per_row: Tensor) -> Work[Estimate]:
        """The mean of something over rows of softmax. How much the scores of a row vary is known
        of every row in O(N D^2), and explains much of how sharp its attention is."""
        if self.reads_all_rows:
            return mean_of(per_row, self.num_tokens)
        variance = yield from self.score_variances()
        # The collision of a row of Gaussian scores: it follows the few sharpest rows.
        collision = (variance.exp() / self.num_tokens).clamp_max(1.0)
        rows = (yield from self.rows()).rows
        controls = [(known[:, rows], known.mean(1)) for known in (variance, collision)]
        return mean_of(per_row, self.num_tokens, controls)

    @shared
    def score_variances(self) -> Work[Tensor]:
        """Var_j(q_i . k_j / sqrt(D)) of every row: [H, N]."""
        q, k = (x.double().transpose(0, 1) for x in (self.view.q, self.view.k))
        yield
        centred = k - k.mean(1, keepdim=True)
        covariance = centred.mT @ centred * (self.view.scale**2 / self.num_tokens)
        variances: Tensor = torch.linalg.vecdot(q @ covariance, q)
        return variances

    def mix(self) -> Tensor:
        """LLN's share of every row: [H, N]."""
        return mix_by_row(self.view)

    def diag_tiles(self) -> Iterator[tuple[slice, Tensor]]:
        """Diag's weights, some blocks at a time. The callers yield between tiles."""
        assert self.weights is not None, "this kind of attention has no blocks"
        return self.weights.tiles()

    @shared
    def operator(self) -> Work[AttentionOperator]:
        factors = (yield from self.light_factors()) if self.view.has_channels else None
        tiles = None if self.weights is None else self.weights.tiles
        return AttentionOperator(self.view, factors, self.blocks, tiles)

    @shared
    def resolvent(self) -> Work[Resolvent]:
        """(s - P)^-1 with s just above 1, of kinds with blocks."""
        shift = _JUST_ABOVE_ONE[self.dtype]
        shifts = torch.full((self.num_heads,), shift, dtype=torch.float64)
        resolvent = Resolvent(self, shifts.to(self.view.q.device))
        yield from resolvent.factorise(self)
        return resolvent

    @shared
    def rows(self) -> Work[RowSample]:
        """The statistics of whole rows: all, or a sample."""
        rows = choose_rows(self.view, self.effort.num_rows(self.num_tokens), self.effort.seed)
        reader = yield from self.row_reader()
        return (yield from read_rows(reader, rows))

    @shared
    def block_rows(self) -> Work[RowStatistics]:
        """The statistics of all rows of block-diagonal attention, over the keys they see."""
        assert self.blocks is not None, "this kind of attention has no blocks"
        parts: list[list[Tensor]] = []
        for blocks in self.blocks.tiles():
            seen = self.blocks.seen[blocks].unsqueeze(1)
            statistics = row_statistics(
                self.blocks.log_weights(blocks), self.blocks.distances(blocks).double(), seen
            )
            parts.append([self.blocks.flat(part, blocks) for part in statistics])
            yield
        return RowStatistics(*(torch.cat(part, dim=1) for part in zip(*parts, strict=True)))

    @shared
    def seen_sums(self) -> Work[SeenSums]:
        """Of LLN+Diag."""
        factors = yield from self.light_factors()
        assert self.blocks is not None, "LLN+Diag has blocks"
        share = self.mix()
        parts: list[list[Tensor]] = []
        for blocks, diag in self.diag_tiles():
            sums = self._seen_sums_of(blocks, diag, factors, share)
            parts.append([self.blocks.flat(part, blocks).double() for part in sums])
            yield
        return SeenSums(*(torch.cat(part, dim=1) for part in zip(*parts, strict=True)))

    def _seen_sums_of(
        self, blocks: slice, diag: Tensor, factors: Factors, share: Tensor
    ) -> list[Tensor]:
        assert self.blocks is not None, "LLN+Diag has blocks"
        pi = self.blocks.rows(factors.pi, blocks)  # [H, blocks, width, D]
        kappa = factors.kappa[:, :, self.blocks.keys[blocks]].transpose(1, 2)
        kappa = self.blocks.hide(kappa, blocks)  # [H, blocks, D, keys]
        mixed = torch.lerp(diag, pi @ kappa, self.blocks.rows(share, blocks).unsqueeze(-1).to(diag))
        distances = self.blocks.distances(blocks).expand_as(diag)
        mass = kappa.sum(-1, keepdim=True)  # [H, blocks, D, 1]
        by_channel = torch.cat([mass, -sum_p_log_p(kappa).unsqueeze(-1)], dim=-1)
        lln, channel_entropy = (pi @ by_channel).unbind(-1)
        return [
            sum_p_log_p(mixed),
            torch.linalg.vecdot(mixed, mixed),
            torch.linalg.vecdot(diag, distances),
            lln,
            torch.linalg.vecdot(pi @ (kappa @ kappa.mT), pi),
            channel_entropy,
            (torch.special.entr(pi) @ mass).squeeze(-1),
        ]

    @shared
    def mean_row(self) -> Work[Tensor | None]:
        """(1 / N) sum_i P_i: [H, N]; None where only a sample of the rows was read."""
        if self.view.attention == "softmax":
            sample = yield from self.rows()
            return sample.row_sum / self.num_tokens if self.reads_all_rows else None
        operator = yield from self.operator()
        ones = torch.ones(
            self.num_heads, self.num_tokens, 1, dtype=torch.float64, device=self.view.q.device
        )
        return (yield from operator.transposed(ones)).squeeze(-1) / self.num_tokens

    @shared
    def collisions(self) -> Work[Tensor]:
        """sum_j P_ij^2 of every row [H, N]; of softmax, of the rows that were read."""
        match self.view.attention:
            case "softmax":
                return (yield from self.rows()).statistics.collision
            case "block_diagonal":
                return (yield from self.block_rows()).collision
            case "lln":
                return (yield from self._lln_collisions())
            case "lln_diag":
                lln = yield from self._lln_collisions()
                seen = yield from self.seen_sums()
                beyond = (lln - seen.lln_squared).clamp_min(0.0)
                return self.mix().square() * beyond + seen.p_squared

    @shared
    def _lln_collisions(self) -> Work[Tensor]:
        factors = yield from self.light_factors()
        overlap = yield from self.overlap()
        overlap = overlap.to(factors.pi)
        parts = []
        for tile in token_tiles(self.num_tokens):
            pi = factors.pi[:, tile]
            parts.append(torch.linalg.vecdot(pi @ overlap, pi).double())
            yield
        return torch.cat(parts, dim=1)
