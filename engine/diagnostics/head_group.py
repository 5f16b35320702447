"""Some heads of a layer, with what several instruments need computed once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from engine.diagnostics.head_view import HeadView, LayerInput, token_tiles
from engine.diagnostics.lln_diag import Blocks, DiagWeights, Factors, lln_factors
from engine.diagnostics.operators import AttentionOperator, Resolvent
from engine.diagnostics.readings import Effort
from engine.diagnostics.rows import (
    HeadRows,
    RowSample,
    RowStatistics,
    read_rows,
    row_statistics,
    row_tiles,
    sum_p_log_p,
)
from engine.diagnostics.sampling import Estimate, choose_rows, mean_of
from engine.diagnostics.score_moments import Grams, grams_of, guess_collisions, score_variances_of
from engine.diagnostics.seen_sums import SeenSums, seen_sums_of
from engine.steps import Steps, computed_once

_JUST_ABOVE_ONE = {torch.float64: 1 + 1e-7, torch.float32: 1 + 1e-4}
"""Shifts of the resolvent. It magnifies what belongs to the eigenvalue 1, and its rounding, by one
over the distance to it, before centring removes it."""

_SMALLEST_COLLISION = 1e-12


class HeadSummary(NamedTuple):
    """What some heads keep for the instruments that compare them with the others of their layer,
    besides Diag's weights in the layer's buffer."""

    factors: Factors | None
    distances: Tensor  # [H] mean, of the rows that are read


class HeadGroup:
    def __init__(
        self,
        view: HeadView,
        effort: Effort,
        states: LayerInput | None = None,
        summaries: Sequence[HeadSummary] = (),
        buffer: Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """`buffer` stores Diag's weights. With the `summaries` of all heads, it has them already.
        `dtype` is the type of the weights; the default is that of the effort."""
        self.view = view
        self.effort = effort
        self.dtype = effort.dtype_of(view.num_tokens) if dtype is None else dtype
        self.blocks = Blocks(view, self.dtype) if view.has_blocks else None
        if states is None and view.x is not None:
            states = LayerInput(view.x, self.dtype)
        self.states = states
        self.summaries = summaries
        self.weights: DiagWeights | None = None
        if self.blocks is not None:
            self.weights = DiagWeights(self.blocks, buffer, is_full=bool(summaries))

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
    def has_matrix(self) -> bool:
        """Whether the text is short enough to keep its attention matrices."""
        return self.num_tokens <= self.effort.max_matrix_tokens

    @property
    def is_isolated(self) -> bool:
        """Two or more blocks that never see each other."""
        view = self.view
        return view.attention == "block_diagonal" and view.num_blocks > 1 and not view.sinks

    @computed_once
    def factors(self) -> Steps[Factors]:
        yield
        return lln_factors(self.view)

    @computed_once
    def grams(self) -> Steps[Grams]:
        return (yield from grams_of(self.view))

    @computed_once
    def light_factors(self) -> Steps[Factors]:
        """The factors in the type of the weights, which is enough for products."""
        factors = yield from self.factors()
        return factors.to(self.dtype)

    @computed_once
    def choice_entropies(self) -> Steps[Tensor]:
        """H(pi), the entropy of every row's choice of a channel: [H, N]."""
        pi = (yield from self.factors()).pi
        yield
        parts = [-sum_p_log_p(pi[:, tile]) for tile in token_tiles(self.num_tokens)]
        return torch.cat(parts, dim=1).clamp_min(0.0)

    @computed_once
    def overlap(self) -> Steps[Tensor]:
        """kappa kappa^T: [H, D, D]."""
        factors = yield from self.factors()
        return factors.overlap

    @computed_once
    def row_reader(self) -> Steps[HeadRows]:
        """Reads rows in the type of the weights."""
        factors = (yield from self.factors()) if self.view.has_channels else None
        return HeadRows(self.view, factors, self.blocks, self.dtype)

    def mean_of_softmax(
        self, per_row: Tensor, limits: tuple[float, float] = (-math.inf, math.inf)
    ) -> Steps[Estimate]:
        """The mean of something over the rows of softmax, of a sample with a control: how sharp a
        row looks is known of every row in linear time. Its logarithm, since a few rows have most of
        the collisions themselves, and no regression on those is safe."""
        if self.reads_all_rows:
            return mean_of(per_row, self.num_tokens)
        sharpness = (yield from self.guessed_collisions()).clamp_min(_SMALLEST_COLLISION).log()
        rows = (yield from self.rows()).rows
        control = sharpness[:, rows], sharpness.mean(1)
        return mean_of(per_row, self.num_tokens, [control], limits)

    def spreads(self) -> Steps[Tensor]:
        """1 - sum of squares of every row, of softmax as guessed: how far it is from a single
        token. It explains part of what else depends on that. [H, N]."""
        softmax = self.view.attention == "softmax"
        found = yield from self.guessed_collisions() if softmax else self.collisions()
        return (1 - found).clamp(0.0, 1.0)

    @computed_once
    def guessed_collisions(self) -> Steps[Tensor]:
        """Every row's collision as guessed from the spread of its scores: [H, N]."""
        variances = yield from self.score_variances()
        return (yield from guess_collisions(self.view, variances))

    @computed_once
    def score_variances(self) -> Steps[Tensor]:
        """Var_j(q_i . k_j / sqrt(D)) of every row: [H, N]."""
        return (yield from score_variances_of(self.view))

    def diag_tiles(self) -> Iterator[tuple[slice, Tensor]]:
        """Diag's weights, some blocks at a time. Callers yield between tiles."""
        assert self.weights is not None, "this kind of attention has no blocks"
        return self.weights.tiles()

    @computed_once
    def operator(self) -> Steps[AttentionOperator]:
        factors = (yield from self.light_factors()) if self.view.has_channels else None
        tiles = None if self.weights is None else self.weights.tiles
        keeps_matrix = self.view.attention == "softmax" and self.has_matrix
        matrix = (yield from self.matrix()) if keeps_matrix else None
        return AttentionOperator(self.view, factors, self.blocks, tiles, matrix)

    @computed_once
    def matrix(self) -> Steps[Tensor]:
        """P itself: [H, N, N] in float64. Of long texts, ask for a single head at a time."""
        factors = (yield from self.factors()) if self.view.has_channels else None
        reader = HeadRows(self.view, factors, self.blocks)
        rows = torch.arange(self.num_tokens, device=self.view.q.device)
        shape = (self.num_heads, self.num_tokens, self.num_tokens)
        matrix = torch.empty(shape, dtype=torch.float64, device=rows.device)
        for tile in row_tiles(self.view, self.num_tokens):
            matrix[:, tile] = reader.full(rows[tile])
            yield
        return matrix

    @computed_once
    def resolvent(self) -> Steps[Resolvent]:
        """(s - P)^-1 with s just above 1, of kinds with blocks."""
        shift = _JUST_ABOVE_ONE[self.dtype]
        shifts = torch.full((self.num_heads,), shift, dtype=torch.float64)
        return (yield from self.resolvent_at(shifts.to(self.view.q.device)))

    def resolvent_at(self, shifts: Tensor) -> Steps[Resolvent]:
        """(s - P)^-1 with a shift for each head, of kinds with blocks."""
        assert self.blocks is not None, "this kind of attention has no blocks"
        factors = (yield from self.light_factors()) if self.view.has_channels else None
        resolvent = Resolvent(self.view, self.blocks, shifts)
        yield from resolvent.factorise(factors, self.diag_tiles())
        return resolvent

    @computed_once
    def rows(self) -> Steps[RowSample]:
        """The statistics of whole rows: of all of them, or of a sample."""
        rows = choose_rows(self.view, self.effort.num_rows(self.num_tokens), self.effort.seed)
        reader = yield from self.row_reader()
        return (yield from read_rows(reader, rows))

    @computed_once
    def block_rows(self) -> Steps[RowStatistics]:
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

    @computed_once
    def seen_sums(self) -> Steps[SeenSums]:
        """Sums over the keys that Diag shows to each row, for LLN+Diag."""
        factors = yield from self.light_factors()
        assert self.blocks is not None, "LLN+Diag has blocks"
        return (yield from seen_sums_of(self.blocks, self.diag_tiles(), factors))

    @computed_once
    def mean_row(self) -> Steps[Tensor | None]:
        """(1 / N) sum_i P_i: [H, N]; None where only a sample of the rows was read."""
        if self.view.attention == "softmax":
            sample = yield from self.rows()
            return sample.row_sum / self.num_tokens if self.reads_all_rows else None
        operator = yield from self.operator()
        ones = torch.ones(
            self.num_heads, self.num_tokens, 1, dtype=torch.float64, device=self.view.q.device
        )
        return (yield from operator.transposed(ones)).squeeze(-1) / self.num_tokens

    @computed_once
    def collisions(self) -> Steps[Tensor]:
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
                return self.view.lln_share().square() * beyond + seen.p_squared

    @computed_once
    def _lln_collisions(self) -> Steps[Tensor]:
        factors = yield from self.light_factors()
        overlap = yield from self.overlap()
        overlap = overlap.to(factors.pi)
        parts = []
        for tile in token_tiles(self.num_tokens):
            pi = factors.pi[:, tile]
            parts.append(torch.linalg.vecdot(pi @ overlap, pi).double())
            yield
        return torch.cat(parts, dim=1)
