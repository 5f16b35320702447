"""Some heads of a layer, with what several instruments need computed once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
from engine.steps import Steps, computed_once

_JUST_ABOVE_ONE = {torch.float64: 1 + 1e-7, torch.float32: 1 + 1e-4}
"""Shifts of the resolvent. It magnifies what belongs to the eigenvalue 1, and its rounding, by one
over the distance to it, before centring removes it."""

_LONGEST_KEYS = 128
_SMALLEST_COLLISION = 1e-12


class Grams(NamedTuple):
    """Second moments of queries and keys."""

    q: Tensor  # [H, D, D] Q^T Q
    k: Tensor  # [H, D, D] K^T K
    k_covariance: Tensor  # [H, D, D]


@dataclass(frozen=True)
class SeenSums:
    """Sums over the keys that Diag shows to a row, of LLN+Diag: each [H, N].

    Beyond those keys there is LLN alone, so with these sums quantities are linear that would
    otherwise need all keys.
    """

    p_log_p: Tensor
    p_squared: Tensor
    diag_distance: Tensor
    lln: Tensor
    lln_squared: Tensor
    channel_entropy: Tensor  # sum_c pi_c sum_j -kappa_cj log kappa_cj
    choice_entropy: Tensor  # sum_c -pi_c log pi_c sum_j kappa_cj


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
        view = self.view
        shape = (view.num_heads, view.head_size, view.head_size)
        gram_q = torch.zeros(shape, dtype=torch.float64, device=view.q.device)
        gram_k = torch.zeros_like(gram_q)
        # Less the first key: keys that are all alike have a covariance of exactly 0.
        origin = view.k[:1].double().transpose(0, 1)  # [H, 1, D]
        total = torch.zeros_like(origin)
        for tile in token_tiles(view.num_tokens):
            q = view.q[tile].double().transpose(0, 1)
            k = view.k[tile].double().transpose(0, 1) - origin
            gram_q += q.mT @ q
            gram_k += k.mT @ k
            total += k.sum(1, keepdim=True)
            yield
        mean = total / view.num_tokens
        shift = origin.mT @ total
        whole = gram_k + shift + shift.mT + view.num_tokens * origin.mT @ origin
        return Grams(gram_q, whole, gram_k / view.num_tokens - mean.mT @ mean)

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
        """Every row's collision if the scores of all but the longest keys were Gaussian: [H, N]."""
        view = self.view
        variances = yield from self.score_variances()
        k = view.k.double().transpose(0, 1)
        k = k - k.mean(1, keepdim=True)  # shifts no row's distribution
        num_keys = min(_LONGEST_KEYS, view.num_tokens)
        longest = k.norm(dim=-1).topk(num_keys, dim=1).indices
        keys = k.gather(1, longest.unsqueeze(-1).expand(-1, -1, view.head_size)) * view.scale
        found = []
        for tile in token_tiles(view.num_tokens):
            scores = view.q[tile].double().transpose(0, 1) @ keys.mT
            if num_keys < view.num_tokens:
                mass = variances[:, tile] / 2 + math.log(view.num_tokens - num_keys)
                scores = torch.cat([scores, mass.unsqueeze(-1)], dim=-1)
            found.append(scores.softmax(-1)[..., :num_keys].square().sum(-1))
            yield
        return torch.cat(found, dim=1)

    @computed_once
    def score_variances(self) -> Steps[Tensor]:
        """Var_j(q_i . k_j / sqrt(D)) of every row: [H, N]."""
        q, k = (x.double().transpose(0, 1) for x in (self.view.q, self.view.k))
        yield
        centred = k - k.mean(1, keepdim=True)
        covariance = centred.mT @ centred * (self.view.scale**2 / self.num_tokens)
        variances: Tensor = torch.linalg.vecdot(q @ covariance, q)
        return variances

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
        """Of LLN+Diag: what Diag shows to every row."""
        factors = yield from self.light_factors()
        assert self.blocks is not None, "LLN+Diag has blocks"
        share = self.view.lln_share()
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
