"""How alike the heads of a layer attend: the cosine <P_g, P_h> / (|P_g| |P_h|) of every pair.

- LLN: <P_g, P_h> = <pi_g^T pi_h, kappa_g kappa_h^T>, exact and linear.
- Block-diagonal and LLN+Diag: products block by block over the keys that Diag shows; beyond them
  both are LLN. Exact, O(N b) a pair.
- Softmax: from the rows that are read, as the ratio of means over rows.

The value is a head's mean cosine with the other heads. Beside: all cosines; and `decay`, the slope
of a layer's log cosines over |log(s_g / s_h)|, s the mean distances: heads that look equally far
tend to be alike. Two Gaussian windows of widths s and t over positions have cosine
sqrt(sech(log s/t)), whose slope tends to -1/2.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from engine.diagnostics.attention_distance import mean_distances
from engine.diagnostics.entropy import mean_collision
from engine.diagnostics.head_group import HeadGroup, HeadSummary
from engine.diagnostics.instrument import Instrument
from engine.diagnostics.lln_diag import channel_exponents
from engine.diagnostics.readings import Quantity, Reading, error_floats, floats
from engine.diagnostics.rows import HeadRows, row_tiles
from engine.diagnostics.sampling import (
    choose_rows,
    ends_of,
    few_rows_factor,
    row_weights,
    standard_error,
)
from engine.steps import Steps

TOKENS_A_TILE = 1_024
_ROWS_A_TILE = 64
"""Rows of a block, for all heads: intermediate results stay in cache."""

_ROWS_A_SUM = 16
_SMALLEST_COSINE = 1e-300


def summarise(heads: HeadGroup) -> Steps[HeadSummary]:
    """What some heads of a layer keep for `measure_similarity`, which compares all of them. It also
    completes Diag's weights in the layer's buffer."""
    for _ in heads.diag_tiles() if heads.blocks is not None else ():
        yield
    factors = (yield from heads.light_factors()) if heads.view.has_channels else None
    distances = yield from mean_distances(heads)
    return HeadSummary(factors, distances.mean(1))


def measure_similarity(heads: HeadGroup) -> Steps[Reading]:
    """Every head's mean cosine with the others of its layer."""
    error = decay_error = None
    if heads.view.attention == "softmax":
        sample = yield from _read_softmax(heads)
        weights = row_weights(len(sample.products), heads.num_tokens).to(sample.products)
        products, scales = (torch.tensordot(weights, part, dims=1) for part in sample)
        if not heads.reads_all_rows:
            error, decay_error = _errors(sample, heads.num_tokens)
            error = error.maximum((yield from _missed(heads, products)))
    else:
        products = yield from _linear_products(heads)
        scales = yield from _scales(heads)
    cosines = _cosines(products)
    decay = _decay(cosines, scales)
    sampled = error is not None
    return Reading(
        values=floats(_mean_of_others(cosines)),
        error=error_floats(None if error is None else _mean_of_others(error)),
        method="sampled rows; standard error" if sampled else "exact: <P_g, P_h>",
        unit=SIMILARITY.unit,
        cost={"softmax": "H^2 rows N", "lln": "H^2 N D^2"}.get(
            heads.view.attention, "H^2 N (b + D^2)"
        ),
        beside={
            "cosines": Quantity(
                values=floats(cosines), unit=SIMILARITY.unit, error=error_floats(error)
            ),
            "decay": Quantity(
                values=floats(decay.expand(len(scales))),
                unit="dimensionless",
                error=None if decay_error is None else floats(decay_error.expand(len(scales))),
            ),
        },
    )


def _mean_of_others(pairs: Tensor) -> Tensor:
    """[H, H] to [H]; 0 for a single head."""
    return (pairs.sum(1) - pairs.diagonal()) / max(len(pairs) - 1, 1)


def _cosines(products: Tensor) -> Tensor:
    """[..., H, H], each within [0, 1]: no weight is negative."""
    norms = products.diagonal(dim1=-2, dim2=-1).clamp_min(torch.finfo(products.dtype).tiny).sqrt()
    cosines = (products / (norms.unsqueeze(-1) * norms.unsqueeze(-2))).clamp(0.0, 1.0)
    cosines.diagonal(dim1=-2, dim2=-1).fill_(1.0)
    return cosines


def _decay(cosines: Tensor, scales: Tensor) -> Tensor:
    """The slope through the origin of log cosine over the log ratio of scales, 0 without pairs: of
    [..., H, H] and [..., H]."""
    logs = scales.clamp_min(torch.finfo(scales.dtype).tiny).log()
    apart = (logs.unsqueeze(-2) - logs.unsqueeze(-1)).abs()
    pairs = torch.ones(cosines.shape[-2:], dtype=torch.bool, device=cosines.device).triu(1)
    x, y = apart[..., pairs], cosines[..., pairs].clamp_min(_SMALLEST_COSINE).log()
    weight = x.square().sum(-1)
    slope: Tensor = (x * y).sum(-1) / weight
    return slope.where(weight > 0, torch.zeros_like(weight))


class _Tiles:
    """pi and kappa of all heads for some tokens at a time: for all tokens, they may fill memory."""

    def __init__(self, heads: HeadGroup) -> None:
        view = heads.view
        assert view.alpha is not None, "an LLN view has alpha"
        assert view.beta is not None, "an LLN view has beta"
        self._view, self._alpha, self._beta = view, view.alpha, view.beta
        self._dtype = heads.dtype
        self._known = [one.factors for one in heads.summaries if one.factors is not None]
        if self._known:
            return
        masses = [
            self._keys(part).logsumexp(1, keepdim=True)
            for part in torch.split(view.k, TOKENS_A_TILE)
        ]
        self._log_mass = torch.cat(masses, dim=1).logsumexp(1, keepdim=True)  # [H, 1, D]

    def pi(self, rows: slice | Tensor) -> Tensor:
        """[H, rows, D]."""
        if self._known:
            return torch.cat([factors.pi[:, rows] for factors in self._known])
        exponents = channel_exponents(self._view.q[rows], self._view.q_map, self._alpha)
        return (exponents + self._log_mass).softmax(-1).to(self._dtype)

    def kappa(self, keys: slice | Tensor) -> Tensor:
        """[H, keys, D], transposed."""
        if self._known:
            return torch.cat([factors.kappa[:, :, keys].mT for factors in self._known])
        return (self._keys(self._view.k[keys]) - self._log_mass).exp_().to(self._dtype)

    def _keys(self, k: Tensor) -> Tensor:
        return channel_exponents(k, self._view.k_map, self._beta)


def _linear_products(heads: HeadGroup) -> Steps[Tensor]:
    """<P_g, P_h>: [H, H]."""
    products = heads.view.q.new_zeros(heads.num_heads, heads.num_heads, dtype=torch.float64)
    tiles = _Tiles(heads) if heads.view.has_channels else None
    if tiles is not None:
        products += yield from _lln_products(heads, tiles)
    if heads.view.has_blocks:
        yield from _add_blocks(heads, tiles, products)
    return products


def _lln_products(heads: HeadGroup, tiles: _Tiles) -> Steps[Tensor]:
    """<L_g, L_h>, each row times LLN's share of it: [H, H]."""
    num_heads, size = heads.num_heads, heads.view.head_size
    together = heads.view.q.new_zeros(num_heads * size, num_heads * size, dtype=torch.float64)
    overlaps = torch.zeros_like(together)
    share = heads.view.lln_share() if heads.view.attention == "lln_diag" else None
    for start in range(0, heads.num_tokens, TOKENS_A_TILE):
        tokens = slice(start, start + TOKENS_A_TILE)
        pi, kappa = tiles.pi(tokens), tiles.kappa(tokens)
        if share is not None:
            pi = pi * share[:, tokens].unsqueeze(-1).to(pi)
        for gram, part in ((together, pi), (overlaps, kappa)):
            flat = part.transpose(0, 1).flatten(1)  # [tokens, H * D]
            gram += flat.mT @ flat
        yield
    return (together * overlaps).view(num_heads, size, num_heads, size).sum((1, 3))


def _add_blocks(heads: HeadGroup, tiles: _Tiles | None, products: Tensor) -> Steps[None]:
    """Add the products over the keys that Diag shows, less those that LLN alone has there."""
    blocks = heads.blocks
    assert blocks is not None, "this kind of attention has blocks"
    share = None if tiles is None else heads.view.lln_share().unsqueeze(-1).to(heads.dtype)
    for tile, diag in heads.diag_tiles():
        if tiles is None or share is None:
            products += _products(diag, diag)
            yield
            continue
        of_rows, pi = blocks.rows(share, tile), blocks.split(tiles.pi(blocks.tokens(tile)))
        kappa = tiles.kappa(blocks.keys[tile].flatten())
        kappa = kappa.view(heads.num_heads, *blocks.keys[tile].shape, -1).mT
        for start in range(0, blocks.width, _ROWS_A_TILE):
            rows = (slice(None), slice(None), slice(start, start + _ROWS_A_TILE))
            lln = (pi[rows] * of_rows[rows]) @ kappa
            own = diag[rows] * (1 - of_rows[rows])
            # <l + d, l + d> - <l, l> = <d, 2 l + d>, made symmetric.
            apart = _products(own, blocks.hide(lln, tile).mul_(2).add_(own))
            products += (apart + apart.mT) / 2
        yield


def _products(one: Tensor, other: Tensor) -> Tensor:
    """Products of every two heads' rows [H, blocks, width, keys], a few at a time, since long sums
    in float32 are inexact: [H, H] in float64."""
    num_rows = one.shape[1] * one.shape[2]
    shape = (len(one), num_rows // math.gcd(num_rows, _ROWS_A_SUM), -1)
    left, right = (rows.reshape(shape).transpose(0, 1) for rows in (one, other))
    by_part = torch.bmm(left, right.mT)  # [parts, H, entries] times [parts, entries, H]
    return by_part.double().sum(0)


def _scales(heads: HeadGroup) -> Steps[Tensor]:
    """How far every head looks: its mean distance [H]."""
    if heads.summaries:
        return torch.cat([one.distances for one in heads.summaries])
    scales = []
    for head in range(heads.num_heads):
        alone = HeadGroup(heads.view.only([head]), heads.effort)
        scales.append((yield from mean_distances(alone)).mean(1))
    return torch.cat(scales)


class _SampledRows(NamedTuple):
    products: Tensor  # [rows, H, H] of every two heads' rows
    distances: Tensor  # [rows, H] mean distance


def _read_softmax(heads: HeadGroup) -> Steps[_SampledRows]:
    rows = choose_rows(heads.view, heads.effort.num_rows(heads.num_tokens), heads.effort.seed)
    reader = HeadRows(heads.view, None, None)
    positions = torch.arange(heads.num_tokens, dtype=reader.dtype, device=rows.device)
    products, distances = [], []
    for tile in row_tiles(heads.view, len(rows)):
        by_head = reader.full(rows[tile]).transpose(0, 1)  # [rows, H, N]
        products.append(by_head @ by_head.mT)
        apart = (rows[tile].unsqueeze(1) - positions).abs()
        distances.append((by_head @ apart.unsqueeze(-1)).squeeze(-1))
        yield
    return _SampledRows(torch.cat(products), torch.cat(distances))


def _errors(sample: _SampledRows, population: int) -> tuple[Tensor, Tensor]:
    """Standard errors of the cosines and of their decay, by the jackknife: how much each changes
    without one of the rows that were drawn."""
    num_rows = len(sample.products)
    first, last = ends_of(num_rows, population)
    drawn, others = slice(first, num_rows - last), population - first - last
    count = num_rows - first - last
    without = []
    for part in sample:
        ends = part[:first].sum(0) + part[num_rows - last :].sum(0)
        rest = (part[drawn].sum(0) - part[drawn]) / max(count - 1, 1)
        without.append((ends + others * rest) / population)
    products, distances = without
    cosines = _cosines(products)
    found = []
    for one in (cosines.flatten(1), _decay(cosines, distances).unsqueeze(1)):
        deviations = max(count - 1, 1) * (one.mean(0) - one)  # [rows, quantities]
        found.append(standard_error(deviations.mT, others))
    factors = few_rows_factor(sample.products.diagonal(dim1=1, dim2=2)[drawn].mT)
    of_pairs = found[0].view_as(products[0]) * factors.unsqueeze(1).maximum(factors)
    of_cosines = of_pairs.clamp_max(1.0).fill_diagonal_(0.0)
    return of_cosines, found[1].squeeze(0)


def _missed(heads: HeadGroup, products: Tensor) -> Steps[Tensor]:
    """How far cosines may be off because the sample has missed a few sharp rows, or has too many of
    them: half of how far its mean collision is from an estimate that reads the sharpest."""
    known = (yield from mean_collision(heads)).values
    apart = (known / products.diagonal() - 1).abs()
    missed: Tensor = _cosines(products) * apart.unsqueeze(1).maximum(apart) / 2
    return missed.clamp_max(1.0).fill_diagonal_(0.0)


SIMILARITY = Instrument(
    name="similarity",
    unit="dimensionless",
    description="mean cosine of a head's attention matrix with the layer's other heads'. Beside: "
    "all cosines, and how they decay with the ratio of head scales.",
    measure=measure_similarity,
    compares_heads=True,
)
