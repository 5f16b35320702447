"""What instruments should answer, from whole attention matrices in float64, by definition.

Nothing here is shared with the instruments but the secular equation's solver, which the tests check
against dense eigenvalues.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import NormalDist
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.diagnostics import HeadView
from engine.diagnostics.fisher import leading_eigenvalues
from engine.diagnostics.head_kind import DELIMITER, LOCAL_TOKENS, SPECIAL

Floats: TypeAlias = NDArray[np.float64]
Quantities: TypeAlias = Mapping[str, Floats]
"""By name; the instrument's value has the name VALUE."""

VALUE = "value"
NUM_SINGULAR_VALUES = 8
NUM_EIGENVALUES = 2
NUM_TOP_TOKENS = 8
QUANTILES = (0.1, 0.5, 0.9)
NUM_PARTS = 4
_DECILES = tuple(NormalDist().inv_cdf(tenth / 10) for tenth in range(1, 10))
_ROWS_A_TILE = 64
_PRECISION = 1e-7


def dense_attention(view: HeadView) -> Tensor:
    """P of every head: [H, N, N]."""
    scores = _scores(view)
    if view.attention == "softmax":
        return scores.softmax(-1)
    diag = scores.masked_fill(~_shown(view), -math.inf).softmax(-1) if view.has_blocks else None
    if not view.has_channels:
        assert diag is not None, "it has blocks or channels"
        return diag
    lln = _lln(view)
    if diag is None:
        return lln
    assert view.mix is not None, "checked by the view"
    share = view.mix.double().expand(view.num_tokens, view.num_heads).T.unsqueeze(-1)
    return share * lln + (1 - share) * diag


def _scores(view: HeadView) -> Tensor:
    q, k = (part.double().transpose(0, 1) for part in (view.q, view.k))
    return q @ k.mT / math.sqrt(view.head_size)


def _shown(view: HeadView) -> Tensor:
    """Which keys Diag shows: [N, N]."""
    places = torch.arange(view.num_tokens)
    first, last = view.num_sinks
    is_sink = (places < first) | (places >= view.num_tokens - last)
    blocks = places // view.block_size
    return (blocks.unsqueeze(1) == blocks) | is_sink


def _lln(view: HeadView) -> Tensor:
    """sum_c exp(alpha q_ic + beta k_jc), normalised along the row."""
    assert view.alpha is not None, "checked by the view"
    assert view.beta is not None, "checked by the view"
    parts = []
    pairs = ((view.q, view.q_map, view.alpha), (view.k, view.k_map, view.beta))
    for rows, head_map, scale in pairs:
        features = rows.double().transpose(0, 1)
        if head_map is not None:
            weight, bias = head_map
            if weight is not None:
                features = features @ weight.double()
            features = features + bias.double().unsqueeze(1)
        parts.append(features * scale.double().view(-1, 1, 1))
    queries, keys = parts
    mass = keys.logsumexp(1, keepdim=True)  # of every channel
    return (queries + mass).softmax(-1) @ (keys - mass).exp().mT


@dataclass(frozen=True, eq=False)
class DenseTruth:
    """The heads of one layer. Each method answers for the instrument of its name."""

    view: HeadView

    @cached_property
    def p(self) -> Tensor:
        return dense_attention(self.view)

    @cached_property
    def logs(self) -> Tensor:
        return self.p.clamp_min(torch.finfo(torch.float64).tiny).log()

    @cached_property
    def collisions(self) -> Tensor:
        return self.p.square().sum(-1)

    @cached_property
    def entropies(self) -> Tensor:
        found: Tensor = torch.special.entr(self.p).sum(-1)
        return found

    def entropy(self) -> Quantities:
        mean = _floats(self.entropies.mean(1))
        return {VALUE: mean, "bits": mean / math.log(2)}

    def spectral_gap(self) -> Quantities:
        moduli = [np.sort(np.abs(np.linalg.eigvals(one)))[-2] for one in self.p.numpy()]
        return {VALUE: np.clip(1 - np.array(moduli), 0.0, 1.0)}

    def stationary(self) -> Quantities:
        """x P = x with sum x = 1, from x (1 - P + 1 u) = u with u even."""
        count = self.view.num_tokens
        even = np.full(count, 1 / count)
        equations = np.eye(count) - self.p.numpy().swapaxes(1, 2) + even[:, None]
        found = np.stack([np.linalg.solve(one, even) for one in equations])
        ends = torch.from_numpy(found).clamp_min(0.0)
        ends = ends / ends.sum(1, keepdim=True)
        return {
            VALUE: _floats(torch.special.entr(ends).sum(1).exp()),
            "top_mass": _floats(ends.topk(min(NUM_TOP_TOKENS, count), dim=1).values),
        }

    def lognormality(self) -> Quantities:
        centred = self.logs - self.logs.mean(-1, keepdim=True)
        variance = centred.square().mean(-1)
        standard = centred / variance.sqrt().unsqueeze(-1)
        below = torch.stack([(standard < decile).double().mean(-1) for decile in _DECILES], dim=-1)
        tenths = torch.arange(1, 10, dtype=torch.float64) / 10
        moments = {
            VALUE: self.logs.flatten(1).var(1, correction=0),
            "within_rows": variance.mean(1),
            "skewness": standard.pow(3).mean((1, 2)),
            "kurtosis": standard.pow(4).mean((1, 2)) - 3,
            "decile_gap": (below - tenths).abs().amax(-1).mean(1),
        }
        return {name: _floats(value) for name, value in moments.items()}

    def effective_rank(self) -> Quantities:
        squares = torch.linalg.svdvals(self.p).square()
        norm = squares.sum(1)
        return {
            VALUE: _floats(norm.square() / squares.square().sum(1)),
            "frobenius_norm": _floats(norm.sqrt()),
            "singular_values": _floats(squares[:, :NUM_SINGULAR_VALUES].sqrt()),
            "stable_rank": _floats(norm / squares[:, 0]),
        }

    def mutual_information(self) -> Quantities:
        of_mean = torch.special.entr(self.p.mean(1)).sum(1)
        squared_norm = self.collisions.sum(1)
        return {
            VALUE: _floats((of_mean - self.entropies.mean(1)).clamp_min(0.0)),
            "log_squared_norm": _floats(squared_norm.log().clamp_min(0.0)),
        }

    @cached_property
    def distances(self) -> Tensor:
        places = torch.arange(self.view.num_tokens, dtype=torch.float64)
        found: Tensor = (self.p * (places.unsqueeze(1) - places).abs()).sum(-1).mean(1)
        return found

    def head_scale(self) -> Quantities:
        return {VALUE: _floats(self.distances)}

    def similarity(self) -> Quantities:
        flat = self.p.flatten(1)
        unit = flat / flat.norm(dim=1, keepdim=True)
        cosines = unit @ unit.T
        heads = len(cosines)
        pairs = torch.ones(heads, heads, dtype=torch.bool).triu(1)
        logs = self.distances.log()
        x, y = (logs.unsqueeze(1) - logs).abs()[pairs], cosines[pairs].log()
        decay = (x @ y) / (x @ x)
        others = (cosines.sum(1) - 1) / (heads - 1)
        return {
            VALUE: _floats(others),
            "cosines": _floats(cosines),
            "decay": _floats(decay.expand(heads)),
        }

    def pruning(self) -> Quantities:
        assert self.view.v is not None
        assert self.view.x is not None
        assert self.view.out is not None
        added = self.p @ self.view.v.double().transpose(0, 1) @ self.view.out.double()
        size = added.square().sum(-1).mean(1).sqrt()
        states = self.view.x.double().square().sum(1).mean().sqrt()
        return {VALUE: _floats(size), "relative": _floats(size / states)}

    def attention_fisher(self) -> Quantities:
        means = [
            torch.cat(
                [
                    leading_eigenvalues(few, NUM_EIGENVALUES, _PRECISION)
                    for few in one.split(_ROWS_A_TILE)
                ]
            ).mean(0)
            for one in self.p
        ]
        return {
            VALUE: _floats(1 - self.collisions.mean(1)),
            "eigenvalues": _floats(torch.stack(means)),
        }

    def weight_fisher(self) -> Quantities:
        assert self.view.x is not None
        x, size = self.view.x.double(), self.view.head_size
        q, k = (part.double().transpose(0, 1) for part in (self.view.q, self.view.k))
        of_keys = self._spread(k - k.mean(1, keepdim=True))
        of_states = self._spread((x - x.mean(0)).expand(len(q), -1, -1))
        return {
            VALUE: _floats(of_keys * x.square().sum() / size),
            "trace_k": _floats(of_states * q.square().sum((1, 2)) / size),
        }

    def _spread(self, points: Tensor) -> Tensor:
        """The mean over rows of the variance of points [H, N, W] under the row: [H]."""
        squares = (self.p @ points.square().sum(-1, keepdim=True)).squeeze(-1)
        return (squares - (self.p @ points).square().sum(-1)).mean(1)

    def softmax_divergence(self) -> Quantities:
        assert self.view.v is not None
        if self.view.attention == "softmax":
            return {VALUE: np.zeros(self.view.num_heads)}
        log_softmax = _scores(self.view).log_softmax(-1)
        softmax, v = log_softmax.exp(), self.view.v.double().transpose(0, 1)
        kl = (torch.xlogy(self.p, self.p) - self.p * log_softmax).sum(-1).clamp_min(0.0)
        apart = ((self.p - softmax) @ v).square().sum((1, 2))
        shares = torch.tensor(QUANTILES, dtype=torch.float64)
        edges = [self.view.num_tokens * part // NUM_PARTS for part in range(NUM_PARTS + 1)]
        spans = list(pairwise(edges))
        return {
            VALUE: _floats(kl.mean(1)),
            "quantiles": _floats(torch.quantile(kl, shares, dim=1).T),
            "total_variation": _floats((self.p - softmax).abs().sum(-1).mean(1) / 2),
            "output_error": _floats((apart / (softmax @ v).square().sum((1, 2))).sqrt()),
            "by_part": _floats(torch.stack([kl[:, a:b].mean(1) for a, b in spans], dim=1)),
        }

    def head_kind(self) -> Quantities:
        """What each key has beyond even attention, by the first kind that fits it."""
        assert self.view.token_kinds is not None
        count, tokens = self.view.num_tokens, self.view.token_kinds
        apart = torch.arange(count) - torch.arange(count).unsqueeze(1)
        fits = {
            "sinks": (tokens == SPECIAL).expand(count, -1),
            "previous": apart == -1,
            "next": apart == 1,
            "self": apart == 0,
            "delimiters": (tokens == DELIMITER).expand(count, -1),
            "local": apart.abs() <= LOCAL_TOKENS,
            "content": torch.ones(count, count, dtype=torch.bool),
        }
        shares = {"diffuse": self.p.clamp_max(1 / count).sum(-1).mean(1)}
        left = (self.p - 1 / count).clamp_min(0.0)
        for kind, mask in fits.items():
            shares[kind] = (left * mask).sum(-1).mean(1)
            left = left.masked_fill(mask, 0.0)
        largest = torch.stack(list(shares.values())).amax(0)
        return {VALUE: _floats(largest)} | {name: _floats(one) for name, one in shares.items()}

    def of(self, instrument: str) -> Quantities:
        """What this instrument should answer; nothing of an instrument that states no errors."""
        found: Callable[[], Quantities] | None = getattr(self, instrument, None)
        return {} if found is None else found()


def _floats(tensor: Tensor) -> Floats:
    values: Floats = tensor.numpy()
    return values
