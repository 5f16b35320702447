"""What instruments should read: each by its definition, from the whole matrix in float64.

It shares no code with the instruments but the roots of the secular equation, and reads texts of a
thousand tokens or so. Spectra, which take the cube of the length, are read on request.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeAlias

import torch
from torch import Tensor

from engine.diagnostics.fisher import leading_eigenvalues
from engine.diagnostics.head_view import HeadMap, HeadView
from engine.diagnostics.rows import DECILES

Truth: TypeAlias = Mapping[tuple[str, str], Tensor]
"""By instrument and quantity, "" for the instrument's value: [H] or [H, ...]."""

_ROWS_A_TILE = 64


def matrix_of(view: HeadView) -> Tensor:
    """The attention matrix: [H, N, N]."""
    scores = _by_head(view.q) @ _by_head(view.k).mT / math.sqrt(view.head_size)
    if view.attention == "softmax":
        return scores.softmax(-1)
    if view.attention == "lln":
        return _lln(view)
    position = torch.arange(view.num_tokens)
    first, last = view.num_sinks
    is_sink = (position < first) | (position >= view.num_tokens - last)
    block = position // view.block_size
    is_seen = (block.unsqueeze(1) == block) | is_sink
    diag = scores.masked_fill_(~is_seen, -math.inf).softmax(-1)
    if view.attention == "block_diagonal":
        return diag
    assert view.mix is not None, "checked by the view"
    share = view.mix.double().expand(view.num_tokens, view.num_heads).t().unsqueeze(-1)
    return torch.lerp(diag, _lln(view), share)


def _lln(view: HeadView) -> Tensor:
    """sum_c exp(alpha q_ic + beta k_jc), normalised along the row."""
    assert view.alpha is not None, "checked by the view"
    assert view.beta is not None, "checked by the view"
    queries = _mapped(view.q, view.q_map) * view.alpha.double().view(-1, 1, 1)
    keys = _mapped(view.k, view.k_map) * view.beta.double().view(-1, 1, 1)
    largest = keys.amax(1, keepdim=True)  # nothing overflows
    queries = queries + largest
    rows = (queries - queries.amax(2, keepdim=True)).exp() @ (keys - largest).exp().mT
    return rows / rows.sum(-1, keepdim=True)


def _mapped(rows: Tensor, head_map: HeadMap | None) -> Tensor:
    mapped = _by_head(rows)
    if head_map is None:
        return mapped
    weight, bias = head_map
    if weight is not None:
        mapped = mapped @ weight.double()
    return mapped + bias.double().unsqueeze(1)


def _by_head(rows: Tensor) -> Tensor:
    return rows.double().transpose(0, 1)


def truth_of(view: HeadView, matrix: Tensor) -> Truth:
    """Everything that takes at most a few products of matrices."""
    collision = matrix.square().sum(-1).mean(-1)
    entropy = -torch.xlogy(matrix, matrix).sum(-1).mean(-1)
    mean_row = matrix.mean(1)
    norm = collision * view.num_tokens
    gram = matrix @ matrix.mT
    position = torch.arange(view.num_tokens, dtype=torch.float64)
    distance = (matrix * (position.unsqueeze(1) - position).abs()).sum(-1).mean(-1)
    return {
        ("entropy", ""): entropy,
        ("entropy", "bits"): entropy / math.log(2),
        ("attention_fisher", ""): 1 - collision,
        ("attention_fisher", "eigenvalues"): _logit_eigenvalues(matrix),
        ("mutual_information", ""): torch.special.entr(mean_row).sum(-1) - entropy,
        ("mutual_information", "log_squared_norm"): norm.log().clamp_min(0),
        ("effective_rank", ""): norm.square() / gram.square().sum((1, 2)),
        ("effective_rank", "frobenius_norm"): norm.sqrt(),
        ("head_scale", ""): distance,
        **_log_normality(view, matrix),
        **_similarity(matrix, distance),
        **_additions(view, matrix),
        **_weight_fisher(view, matrix),
    }


def spectra_of(matrix: Tensor) -> Truth:
    """What takes the cube of the length: singular values, eigenvalues, the end of the chain."""
    values = torch.linalg.svdvals(matrix)
    squares = values.square()
    moduli = torch.linalg.eigvals(matrix).abs().sort(descending=True).values
    even = 1 / matrix.shape[-1]
    system = matrix.mT - torch.eye(matrix.shape[-1], dtype=torch.float64) + even
    ends = torch.linalg.solve(system, torch.full_like(matrix[:, 0], even)).clamp_min(0)
    return {
        ("effective_rank", "singular_values"): values[:, :8],
        ("effective_rank", "stable_rank"): squares.sum(1) / squares[:, 0],
        ("spectral_gap", ""): 1 - moduli[:, 1],
        ("stationary", ""): torch.special.entr(ends).sum(-1).exp(),
        ("stationary", "top_mass"): ends.sort(descending=True).values[:, :8],
    }


def _logit_eigenvalues(matrix: Tensor) -> Tensor:
    tiles = torch.split(matrix, _ROWS_A_TILE, dim=1)
    return torch.cat([leading_eigenvalues(rows, 2, 1e-9) for rows in tiles], dim=1).mean(1)


def _log_normality(view: HeadView, matrix: Tensor) -> Truth:
    """Over the keys that each row sees."""
    if view.attention == "block_diagonal" and view.num_blocks > 1:
        raise ValueError("rows that see a part of the keys are not read here")
    logs = matrix.clamp_min(torch.finfo(torch.float64).tiny).log()
    centred = logs - logs.mean(-1, keepdim=True)
    variance = centred.square().mean(-1)
    centred /= variance.sqrt().unsqueeze(-1)
    shares = torch.stack([(centred < decile).double().mean(-1) for decile in DECILES], dim=-1)
    gaps = (shares - torch.arange(1, 10, dtype=torch.float64) / 10).abs().amax(-1)
    return {
        ("lognormality", ""): variance.mean(-1) + logs.mean(-1).var(-1, correction=0),
        ("lognormality", "within_rows"): variance.mean(-1),
        ("lognormality", "skewness"): centred.pow(3).mean((1, 2)),
        ("lognormality", "kurtosis"): centred.pow(4).mean((1, 2)) - 3,
        ("lognormality", "decile_gap"): gaps.mean(-1),
    }


def _similarity(matrix: Tensor, distance: Tensor) -> Truth:
    flat = matrix.flatten(1)
    flat = flat / flat.norm(dim=1, keepdim=True)
    cosines = flat @ flat.T
    apart = (distance.log().unsqueeze(1) - distance.log()).abs()
    pairs = torch.ones_like(apart, dtype=torch.bool).triu(1)
    x, y = apart[pairs], cosines[pairs].log()
    decay = (x @ y) / (x @ x)
    return {
        ("similarity", ""): (cosines.sum(1) - cosines.diagonal()) / (len(cosines) - 1),
        ("similarity", "cosines"): cosines,
        ("similarity", "decay"): decay.expand(len(cosines)),
    }


def _additions(view: HeadView, matrix: Tensor) -> Truth:
    assert view.v is not None, "a view of a whole layer"
    assert view.out is not None, "a view of a whole layer"
    assert view.x is not None, "a view of a whole layer"
    added = matrix @ _by_head(view.v) @ view.out.double()
    norm = added.square().sum(-1).mean(-1).sqrt()
    states = view.x.double().square().sum(-1).mean().sqrt()
    return {("pruning", ""): norm, ("pruning", "relative"): norm / states}


def _weight_fisher(view: HeadView, matrix: Tensor) -> Truth:
    """As sums over rows of the variance of keys and of states."""
    assert view.x is not None, "a view of a whole layer"
    q, k = _by_head(view.q), _by_head(view.k)
    x = view.x.double() - view.x.double().mean(0)
    scale = view.num_tokens * view.head_size
    spread_k = _spread(matrix, k - k.mean(1, keepdim=True))
    spread_x = _spread(matrix, x.expand(view.num_heads, -1, -1))
    gram_q = q.square().sum((1, 2))
    return {
        ("weight_fisher", ""): view.x.double().square().sum() * spread_k / scale,
        ("weight_fisher", "trace_k"): gram_q * spread_x / scale,
    }


def _spread(matrix: Tensor, points: Tensor) -> Tensor:
    """The sum over rows of the variance of points [H, N, W] under the row's weights: [H]."""
    squares = (matrix @ points.square().sum(-1, keepdim=True)).sum((1, 2))
    return squares - (matrix @ points).square().sum((1, 2))
