"""Means over seeds with 95 % intervals of Student's t: a few seeds are too few to resample."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

_T_975 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
)
"""The 97.5 % quantile of Student's t, by degrees of freedom from 1."""
MAX_SEEDS = len(_T_975) + 1


@dataclass(frozen=True, kw_only=True)
class SeedInterval:
    mean: float
    low: float
    high: float


def over_seeds(values: Sequence[float]) -> SeedInterval:
    """The mean and its interval; one seed has no interval, so its bounds are infinite."""
    mean, count = fmean(values), len(values)
    if count == 1:
        return SeedInterval(mean=mean, low=-math.inf, high=math.inf)
    half = _T_975[count - 2] * stdev(values) / math.sqrt(count)
    return SeedInterval(mean=mean, low=mean - half, high=mean + half)


def paired(first: Sequence[float], second: Sequence[float]) -> SeedInterval:
    """The mean of first minus second, seed by seed."""
    return over_seeds([one - other for one, other in zip(first, second, strict=True)])
