"""The LLN paper's moment matching: alpha and beta from the spread of queries and keys."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

# Slope and offset of the line between Var(log P_LLN) and the feature variance, as published with
# the authors' code (the paper's section A.7 describes the fit and prints no values).
SLOPE = 0.14855178144710912
OFFSET = -0.35487039130661086


class MomentMatch(NamedTuple):
    alpha: Tensor  # []
    beta: Tensor  # []


def paper_moment_matching(q: Tensor, k: Tensor) -> MomentMatch:
    """Equation 10 over all of q and k at once, as the authors' code takes its statistics.

    The answer depends on everything in q and k, so a caller who wants the same text to give the
    same result must measure once and keep the numbers.
    """
    sigma_q, sigma_k = q.double().std(), k.double().std()
    feature_std = (((sigma_q * sigma_k) ** 2 - OFFSET) / (2 * SLOPE)).sqrt()
    return MomentMatch(feature_std / sigma_q, feature_std / sigma_k)
