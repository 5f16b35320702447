"""Three ways to choose alpha and beta so that LLN attention is as concentrated as softmax.

- `paper`: equation 10 of the LLN paper with the constants of its authors' code, head by head. With
  these constants LLN's Var(log P) is up to 55 % larger than softmax's, depending on D.
- `refitted`: equation 10 with constants fitted to each head size, for score variances of 0.5 to 4.
  The variance of the scores is measured within rows, not taken from the spread of q and k.
- `entropy_matched`: no formula. It searches the feature variance at which LLN has the mean row
  entropy that softmax has on the same queries and keys. Equal Var(log P) does not give equal
  entropy.

All three split the feature variance evenly: alpha^2 sigma_q^2 = beta^2 sigma_k^2. Centre the keys
first: softmax does not change when all keys move together, but LLN does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from engine.claims.matrices import lln_matrix, log_variance
from engine.diagnostics import Effort, HeadView, measure
from kernels.attention import paper_moment_matching


class HeadMatch(NamedTuple):
    alpha: Tensor  # [H]
    beta: Tensor  # [H]


Matching: TypeAlias = Callable[[Tensor, Tensor], HeadMatch]


class Line(NamedTuple):
    """Var(log P_LLN) = slope * feature variance + offset."""

    slope: float
    offset: float


REFITTED: Mapping[int, Line] = MappingProxyType(
    {
        16: Line(0.2256, -0.5606),
        32: Line(0.2044, -0.7195),
        64: Line(0.1869, -0.8553),
        128: Line(0.1701, -0.9712),
        256: Line(0.1586, -1.0837),
    }
)
"""By head size. `fit_line` found these constants, and a test fits one of them again."""

_SCORE_VARIANCES = np.linspace(0.5, 4.0, 15)
_FEATURE_VARIANCES = tuple(np.linspace(1.0, 46.0, 31).tolist())
_HALVINGS = 18
WIDEST = 64.0
"""The largest feature variance that matching by entropy tries. Some real heads are sharper than LLN
is there, for example those that look at one neighbour only."""
_NARROWEST = 1e-4


def paper(q: Tensor, k: Tensor) -> HeadMatch:
    """Match by the published constants; q and k are [T, H, D]."""
    heads = [paper_moment_matching(q[:, head], k[:, head]) for head in range(q.shape[1])]
    return HeadMatch(*(torch.stack(scale) for scale in zip(*heads, strict=True)))


def refitted(q: Tensor, k: Tensor) -> HeadMatch:
    """Match by the constants of this head size.

    Scores that vary less than LLN can follow get the least feature variance.
    """
    line = line_of(q.shape[-1])
    reading = measure(_softmax_view(q, k), ["temperature"])["temperature"]
    temperature = torch.from_numpy(reading.values)
    feature_variance = (temperature.pow(-2) - line.offset) / line.slope
    return _split(feature_variance.clamp_min(_NARROWEST), q, k)


def entropy_matched(q: Tensor, k: Tensor, effort: Effort | None = None) -> HeadMatch:
    """Match by bisection on the feature variance: LLN's entropy falls as it grows.

    A head that is sharper, or more even, than LLN can be gets the end of the range.
    """
    wanted = _entropy(_softmax_view(q, k), effort)
    low, high = (torch.full_like(wanted, end) for end in (_NARROWEST, WIDEST))
    for _ in range(_HALVINGS):
        middle = (low * high).sqrt()
        too_even = _entropy(_lln_view(q, k, _split(middle, q, k)), effort) > wanted
        low, high = torch.where(too_even, middle, low), torch.where(too_even, high, middle)
    return _split((low * high).sqrt(), q, k)


MATCHINGS: Mapping[str, Matching] = MappingProxyType(
    {"paper": paper, "refitted": refitted, "entropy_matched": entropy_matched}
)


def line_of(head_dim: int) -> Line:
    """The constants of a head size, interpolated in its logarithm between two fitted sizes."""
    sizes = sorted(REFITTED)
    at = np.log(np.clip(head_dim, sizes[0], sizes[-1]))
    slope, offset = (
        float(np.interp(at, np.log(sizes), [REFITTED[size][part] for size in sizes]))
        for part in range(2)
    )
    return Line(slope, offset)


def fit_line(head_dim: int, *, num_tokens: int = 2048, num_samples: int = 4) -> Line:
    """Fit Var(log P) against the feature variance, for score variances of 0.5 to 4."""
    found = log_variances(
        _FEATURE_VARIANCES, head_dim, num_tokens=num_tokens, num_samples=num_samples
    )
    feature_variances = np.interp(_SCORE_VARIANCES, found, _FEATURE_VARIANCES)
    slope, offset = np.polyfit(feature_variances, _SCORE_VARIANCES, 1)
    return Line(float(slope), float(offset))


def log_variances(
    feature_variances: Sequence[float], head_dim: int, *, num_tokens: int, num_samples: int
) -> list[float]:
    """Var(log P) of LLN on Gaussian queries and keys, for each feature variance."""
    found = np.zeros(len(feature_variances))
    for sample in range(num_samples):
        generator = torch.Generator().manual_seed(sample)
        q, k = torch.randn(2, num_tokens, head_dim, dtype=torch.float64, generator=generator)
        scales = [math.sqrt(variance / 2) for variance in feature_variances]
        found += [float(log_variance(lln_matrix(q, k, scale, scale))) for scale in scales]
    return [float(total) / num_samples for total in found]


def _split(feature_variance: Tensor, q: Tensor, k: Tensor) -> HeadMatch:
    """Choose alpha^2 sigma_q^2 = beta^2 sigma_k^2 = half the feature variance."""
    half = (feature_variance / 2).sqrt()
    alpha, beta = (half / _spread(rows) for rows in (q, k))
    return HeadMatch(alpha, beta)


def _spread(rows: Tensor) -> Tensor:
    """The standard deviation of each head's elements, and at least that of rounding."""
    elements = rows.double().transpose(0, 1).flatten(1)
    return elements.std(1).clamp_min(torch.finfo(torch.float32).eps)


def _softmax_view(q: Tensor, k: Tensor) -> HeadView:
    return HeadView(q=q, k=k, attention="softmax")


def _lln_view(q: Tensor, k: Tensor, match: HeadMatch) -> HeadView:
    return HeadView(q=q, k=k, attention="lln", alpha=match.alpha, beta=match.beta)


def _entropy(view: HeadView, effort: Effort | None) -> Tensor:
    return torch.from_numpy(measure(view, ["entropy"], effort)["entropy"].values)
