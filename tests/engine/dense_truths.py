"""What every instrument of heads is to find, from a dense float64 matrix and by definition."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from engine.diagnostics import HeadView
from engine.diagnostics.rows import DECILES
from engine.diagnostics.temperature import HIGHEST
from tests.engine.dense import DENSE, HEAD_SIZE, Floats, dense, kind_shares, scores, seen

_DECILES, _TENTHS = np.array(DECILES), np.arange(1, 10) / 10


def entropies(view: HeadView) -> dict[str, Tensor]:
    matrix = dense(view)
    entropy = -torch.xlogy(matrix, matrix).sum(-1).mean(-1)
    return {"": entropy, "bits": entropy / math.log(2)}


def spectral_gaps(view: HeadView) -> dict[str, Tensor]:
    matrix = dense(view)
    if view.num_tokens == 1:
        return {"": torch.ones(view.num_heads)}
    moduli = torch.linalg.eigvals(matrix).abs().sort(descending=True).values
    return {"": 1 - moduli[:, 1]}


def temperatures(view: HeadView) -> dict[str, Tensor]:
    within = _variance_of_scores(view)
    return {"": 1 / within.sqrt().clamp_min(1 / HIGHEST)} | _paper_temperatures(view)


def _variance_of_scores(view: HeadView) -> Tensor:
    keys = seen(view)
    counts = keys.sum(-1)
    centred = scores(view) - (scores(view) * keys).sum(-1, keepdim=True) / counts[:, None]
    return (((centred * keys) ** 2).sum(-1) / counts).mean(-1)


def _paper_temperatures(view: HeadView) -> dict[str, Tensor]:
    """Eq. 5 word for word, and of elements less their means."""
    variances = []
    for head in range(view.num_heads):
        q, k = (x[:, head].double().flatten().numpy() for x in (view.q, view.k))
        variances.append([_eq_5(q, k), _eq_5(q - q.mean(), k - k.mean())])
    printed, centred = 1 / torch.tensor(variances).clamp_min(HIGHEST**-2).sqrt().mT
    return {"paper": printed, "paper_centred": centred}


def _eq_5(q: Floats, k: Floats) -> float:
    cross = np.mean(q**2 * k**2) - np.mean(q**2) * np.mean(k**2)
    cross -= (np.mean(q * k) - q.mean() * k.mean()) ** 2
    return float(q.var() * k.var() + cross)


def stationary_perplexities(view: HeadView) -> dict[str, Tensor]:
    """By repeating the chain until nothing moves."""
    matrix = dense(view)
    rows = torch.full((view.num_heads, 1, view.num_tokens), 1 / view.num_tokens).double()
    power = matrix
    for _ in range(60):
        before, power = power, power @ power
        power = power / power.sum(-1, keepdim=True)
        if (power - before).abs().max() < 1e-15:
            break
    ends = (rows @ power).squeeze(1)
    order = ends.sort(descending=True)
    return {"": torch.special.entr(ends).sum(-1).exp(), "top_mass": order.values[:, :8]}


def log_normalities(view: HeadView) -> dict[str, Tensor]:
    keys = seen(view)
    found: dict[str, list[float]] = {
        name: [] for name in ("", "within_rows", "skewness", "kurtosis", "decile_gap")
    }
    for matrix in dense(view):
        rows = [row[used].log().numpy() for row, used in zip(matrix, keys, strict=True)]
        spread = [row.std() if np.ptp(row) > 1e-12 else 0.0 for row in rows]
        standard = [(r - r.mean()) / s if s else None for r, s in zip(rows, spread, strict=True)]
        means = np.array([row.mean() for row in rows])
        within = np.mean(np.square(spread))
        found[""].append(within + means.var())
        found["within_rows"].append(within)
        found["skewness"].append(_mean([0.0 if z is None else (z**3).mean() for z in standard]))
        found["kurtosis"].append(_mean([0.0 if z is None else (z**4).mean() - 3 for z in standard]))
        found["decile_gap"].append(_mean([0.0 if z is None else _gap(z) for z in standard]))
    return {name: torch.tensor(values) for name, values in found.items()}


def _gap(standard: Floats) -> float:
    below = np.count_nonzero(standard[:, None] < _DECILES, axis=0) / len(standard)
    return float(np.abs(below - _TENTHS).max())


def _mean(values: list[float]) -> float:
    return float(np.mean(values))


def ranks(view: HeadView) -> dict[str, Tensor]:
    values = torch.linalg.svdvals(dense(view))
    squares = values**2
    leading = torch.zeros(view.num_heads, 8, dtype=torch.float64)
    leading[:, : values.shape[1]] = values[:, :8]
    return {
        "": squares.sum(1) ** 2 / (squares**2).sum(1),
        "frobenius_norm": squares.sum(1).sqrt(),
        "stable_rank": squares.sum(1) / squares[:, 0],
        "singular_values": leading,
    }


def informations(view: HeadView) -> dict[str, Tensor]:
    matrix = dense(view)
    mean = matrix.mean(1)
    entropy = -torch.xlogy(matrix, matrix).sum(-1).mean(-1)
    return {
        "": (torch.special.entr(mean).sum(-1) - entropy).clamp_min(0),
        "log_squared_norm": (matrix**2).sum((1, 2)).log().clamp_min(0),
    }


def energies(view: HeadView) -> dict[str, Tensor]:
    norms = view.q.double().square().sum((0, 2)) * view.k.double().square().sum((0, 2))
    bound = norms / HEAD_SIZE
    energy = (scores(view) ** 2).sum((1, 2))
    return {"": energy, "bound": bound, "share_of_bound": energy / bound}


def scales(view: HeadView) -> dict[str, Tensor]:
    return {"": (dense(view) * _distances(view)).sum(-1).mean(-1)}


def _distances(view: HeadView) -> Tensor:
    position = torch.arange(view.num_tokens).double()
    return (position[:, None] - position).abs()


def similarities(view: HeadView) -> dict[str, Tensor]:
    flat = dense(view).flatten(1)
    flat = flat / flat.norm(dim=1, keepdim=True)
    cosines = flat @ flat.T
    others = (cosines.sum(1) - 1) / (view.num_heads - 1)
    return {"": others, "cosines": cosines}


def additions(view: HeadView) -> dict[str, Tensor]:
    assert view.v is not None
    assert view.x is not None
    assert view.out is not None
    added = dense(view) @ view.v.double().transpose(0, 1) @ view.out.double()
    norm = added.square().sum(-1).mean(-1).sqrt()
    return {"": norm, "relative": norm / view.x.double().square().sum(-1).mean().sqrt()}


def attention_fishers(view: HeadView) -> dict[str, Tensor]:
    rows = dense(view)
    fisher = torch.diag_embed(rows) - rows.unsqueeze(-1) * rows.unsqueeze(-2)
    trace = fisher.diagonal(dim1=-2, dim2=-1).sum(-1).mean(-1)
    if view.num_tokens > DENSE.max_dense_tokens:
        return {"": trace}
    values = torch.linalg.eigvalsh(fisher).flip(-1)[..., :2].mean(1)
    leading = torch.zeros(view.num_heads, 2, dtype=torch.float64)
    leading[:, : values.shape[1]] = values
    return {"": trace, "eigenvalues": leading.clamp_min(0)}


def weight_fishers(view: HeadView) -> dict[str, Tensor]:
    """Row by row, as sums of covariances."""
    assert view.x is not None
    x, k, q = view.x.double(), view.k.double().transpose(0, 1), view.q.double().transpose(0, 1)
    matrix = dense(view)
    cov_k = _covariances(matrix, k)
    cov_x = _covariances(matrix, x.expand(view.num_heads, -1, -1))
    gram_x, gram_q = x.T @ x, q.mT @ q
    scale = view.num_tokens * HEAD_SIZE
    return {
        "": gram_x.trace() * _traces(cov_k) / scale,
        "trace_k": _traces(cov_x) * _traces(gram_q) / scale,
        "rank_q_keys": _participation(cov_k),
        "rank_k_states": _participation(cov_x),
        "rank_k_queries": _participation(gram_q),
    }


def _covariances(matrix: Tensor, points: Tensor) -> Tensor:
    means = matrix @ points  # [H, N, W]
    centred = points.unsqueeze(1) - means.unsqueeze(2)  # [H, N, N, W]
    return torch.einsum("hij,hija,hijb->hab", matrix, centred, centred)


def _traces(matrices: Tensor) -> Tensor:
    return matrices.diagonal(dim1=1, dim2=2).sum(1)


def _participation(matrices: Tensor) -> Tensor:
    squares = matrices.square().sum((1, 2))
    return torch.where(squares > 1e-20, _traces(matrices) ** 2 / squares, 0.0)


def divergences(view: HeadView) -> dict[str, Tensor]:
    assert view.v is not None
    own, softmax = dense(view), scores(view).softmax(-1)
    kl = (torch.xlogy(own, own) - own * scores(view).log_softmax(-1)).sum(-1)
    v = view.v.double().transpose(0, 1)
    apart = ((own - softmax) @ v).norm(dim=(1, 2)) / (softmax @ v).norm(dim=(1, 2))
    return {
        "": kl.mean(1),
        "quantiles": torch.quantile(kl, torch.tensor([0.1, 0.5, 0.9]).double(), dim=1).T,
        "total_variation": (own - softmax).abs().sum(-1).mean(1) / 2,
        "output_error": apart,
    }


def head_kinds(view: HeadView) -> dict[str, Tensor]:
    shares = kind_shares(view)
    return {"": torch.stack(list(shares.values())).amax(0)} | shares


Truth: TypeAlias = Callable[[HeadView], dict[str, Tensor]]

TRUTH: Mapping[str, Truth] = {
    "temperature": temperatures,
    "entropy": entropies,
    "spectral_gap": spectral_gaps,
    "stationary": stationary_perplexities,
    "lognormality": log_normalities,
    "effective_rank": ranks,
    "mutual_information": informations,
    "energy": energies,
    "head_scale": scales,
    "similarity": similarities,
    "pruning": additions,
    "attention_fisher": attention_fishers,
    "weight_fisher": weight_fishers,
    "softmax_divergence": divergences,
    "head_kind": head_kinds,
}


def stationary_by_elimination(view: HeadView) -> dict[str, Tensor]:
    """x P = x and sum x = 1, as one system of equations."""
    matrix = dense(view)
    even = 1 / view.num_tokens
    system = matrix.mT - torch.eye(view.num_tokens, dtype=torch.float64) + even
    wanted = torch.full((view.num_heads, view.num_tokens), even, dtype=torch.float64)
    ends = torch.linalg.solve(system, wanted)
    leading = ends.sort(descending=True).values[:, :8]
    return {"": torch.special.entr(ends.clamp_min(0)).sum(-1).exp(), "top_mass": leading}


TRUTH_AT_LENGTH = {
    name: TRUTH[name]
    for name in ("entropy", "temperature", "mutual_information", "energy", "head_scale", "pruning")
} | {"similarity": similarities, "stationary": stationary_by_elimination}
