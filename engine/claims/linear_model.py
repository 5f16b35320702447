"""Y. Nahshan, J. Kampeas, E. Haleva, "Linear Log-Normal Attention" (ICLR 2024): the variance of
LLN attention, which its section 4 and appendix A.6 model."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Generator, Tensor

from engine.claims.claim import Claim, Finding, Material, Measured, Repair, Replacement
from engine.claims.lln_matching import log_variances
from engine.claims.matrices import gaussian, lln_matrix, log_variance
from engine.claims.softmax_model import PAPER

HEAD_SIZES = (32, 64, 128)
_HEAD_SIZE = 64  # where one is enough
_TOKENS = 1024
"""Tokens of the heads whose moments are compared with formulas."""


def _check_linearity(material: Material, generator: Generator) -> Finding:
    """Fits lines through measured variances, by head size and by length."""
    feature_variances = (10.0, 15.0, 20.0, 25.0, 30.0)
    samples = material.trials(2)
    lines, bends = {}, []
    for dim, length in ((32, 512), (64, 512), (128, 512), (32, 1024)):
        found = log_variances(feature_variances, dim, num_tokens=length, num_samples=samples)
        slope, offset = np.polyfit(feature_variances, found, 1)
        fitted = slope * np.array(feature_variances) + offset
        bends.append(float(np.abs(fitted / np.array(found) - 1).max()))
        lines[f"D={dim}, N={length}"] = [float(slope), float(offset)]
    by_size = lines["D=32, N=512"][0] / lines["D=128, N=512"][0] - 1
    return Finding(
        stated=Measured(worst=by_size, allowed=0.05, cases=3),
        corrected=Measured(worst=max(bends), allowed=0.15, cases=len(lines)),
        evidence={
            "a_and_b": lines,
            "a_at_32_over_a_at_128": by_size + 1,
            "a_at_1024_tokens_over_512": lines["D=32, N=1024"][0] / lines["D=32, N=512"][0],
        },
    )


def _log_kernel(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """log sum_c exp(scale (q_ic + k_jc)): [N, N]."""
    kernel: Tensor = ((scale * q).exp() @ (scale * k).exp().mT).log()
    return kernel


def _check_numerator(material: Material, generator: Generator) -> Finding:
    """Fenton's approximation for the sum over D channels."""
    errors, rows = [], {}
    for dim in HEAD_SIZES:
        for variance in (0.2, 0.6, 1.2):
            q, k = gaussian(generator, _TOKENS, dim), gaussian(generator, _TOKENS, dim)
            found = float(_log_kernel(q, k, math.sqrt(variance / 2)).var())
            claimed = math.log1p(math.expm1(variance) / dim)
            rows[f"D={dim}, {variance:g}"] = [found, claimed]
            errors.append(abs(found / claimed - 1))
    return Finding(
        stated=Measured(worst=max(errors), allowed=0.15, cases=len(errors)),
        evidence={"measured_and_claimed": rows},
    )


def _check_denominator(material: Material, generator: Generator) -> Finding:
    dim, rows, stated, corrected = _HEAD_SIZE, {}, [], []
    for length in (512, 2048):
        for variance in (0.2, 0.6, 1.2):
            q, k = gaussian(generator, length, dim), gaussian(generator, length, dim)
            log_sum = _log_kernel(q, k, math.sqrt(variance / 2)).logsumexp(-1)
            found = float(log_sum.var())
            claimed = math.log1p(math.expm1(variance) / length)
            true = math.log1p(math.expm1(variance / 2) / dim)
            rows[f"N={length}, {variance:g}"] = [found, claimed, true]
            stated.append(abs(claimed / found - 1))
            corrected.append(abs(true / found - 1))
    return Finding(
        stated=Measured(worst=max(stated), allowed=0.15, cases=len(stated)),
        corrected=Measured(worst=max(corrected), allowed=0.15, cases=len(corrected)),
        evidence={"measured_claimed_corrected": rows},
    )


def _standard(generator: Generator, length: int, dim: int) -> Tensor:
    """Gaussian rows with mean 0 and covariance 1 exactly, which leaves less to chance."""
    rows = gaussian(generator, length, dim)
    rows = rows - rows.mean(0)
    triangle = torch.linalg.cholesky(rows.mT @ rows / (length - 1))
    standard: Tensor = torch.linalg.solve_triangular(triangle, rows.mT, upper=False).mT
    return standard


def _check_variance_of_the_ratio(material: Material, generator: Generator) -> Finding:
    """Numerator and denominator share their query, so their variances do not add."""
    rows, stated, corrected = {}, [], []
    for dim in HEAD_SIZES:
        for variance in (0.1, 0.3, 0.6):
            q, k = _standard(generator, _TOKENS, dim), _standard(generator, _TOKENS, dim)
            scale = math.sqrt(variance / 2)
            found = float(log_variance(lln_matrix(q, k, scale, scale)))
            claimed = math.log1p(math.expm1(variance) / dim) + math.log1p(
                math.expm1(variance) / _TOKENS
            )
            half = variance / 2
            true = math.log1p(math.exp(half) * math.expm1(half) / dim)
            rows[f"D={dim}, {variance:g}"] = [found, claimed, true]
            stated.append(abs(claimed / found - 1))
            corrected.append(abs(true / found - 1))
    return Finding(
        stated=Measured(worst=min(stated), allowed=0.1, cases=len(stated)),
        corrected=Measured(worst=max(corrected), allowed=0.06, cases=len(corrected)),
        evidence={"measured_claimed_corrected": rows, "largest_error_corrected": max(corrected)},
    )


CLAIMS = (
    Claim(
        id="lln.proposition-4.1",
        paper=PAPER,
        statement="Var(log P_LLN) = a (alpha^2 sigma_q^2 + beta^2 sigma_k^2) + b, "
        "a and b constant.",
        check=_check_linearity,
        correction=Repair(
            text="Linear within 15 % for feature variances of 10 to 30, but a and b depend on the "
            "head size (little on the length)."
        ),
    ),
    Claim(
        id="lln.equation-28",
        paper=PAPER,
        statement="The numerator's log has variance ln(1 + (e^s - 1) / D), s up to 1.2.",
        check=_check_numerator,
    ),
    Claim(
        id="lln.equation-29",
        paper=PAPER,
        statement="The denominator's log has variance ln(1 + (e^s - 1) / N).",
        check=_check_denominator,
        correction=Replacement(
            text="It has variance ln(1 + (e^(alpha^2 sigma_q^2) - 1) / D), whatever N is: all its "
            "terms share one query."
        ),
    ),
    Claim(
        id="lln.equation-32",
        paper=PAPER,
        statement="Var(log P_LLN) is the sum of the numerator's and the denominator's variance.",
        check=_check_variance_of_the_ratio,
        correction=Replacement(
            text="They share the query. For s up to 0.6 it is "
            "ln(1 + e^(alpha^2 sigma_q^2) (e^(beta^2 sigma_k^2) - 1) / D) within 6 %."
        ),
    ),
)
