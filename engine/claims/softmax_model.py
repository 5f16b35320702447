"""Y. Nahshan, J. Kampeas, E. Haleva, "Linear Log-Normal Attention" (ICLR 2024): its section 3 and
appendices A.1 to A.5, which model softmax attention."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Generator, Tensor

from engine.claims.claim import Claim, Finding, Material, Measured, Repair, Replacement
from engine.claims.matrices import (
    centred,
    gaussian,
    gaussian_heads,
    log_variance,
    mean_row_entropy,
    second_modulus,
    softmax_matrix,
)
from engine.diagnostics import HeadView, measure
from engine.diagnostics.linear_algebra import eigenvalues

PAPER = "Linear Log-Normal Attention with Unbiased Concentration"
TEMPERATURES = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 10.0, 50.0)


def _check_definitions(material: Material, generator: Generator) -> Finding:
    """The dense and the factored form of a linear kernel agree, and softmax is a kernel's."""
    q, k = gaussian(generator, 24, 8), gaussian(generator, 24, 8)
    v = gaussian(generator, 24, 8)
    fq, fk = q.exp(), k.exp()
    dense = fq @ fk.mT
    dense = dense / dense.sum(-1, keepdim=True) @ v
    factored = fq @ (fk.mT @ v) / (fq @ fk.sum(0))[:, None]
    kernel = (q @ k.mT / math.sqrt(8)).exp()
    errors = {
        "linear_kernel_dense_against_factored": float((dense - factored).abs().max()),
        "softmax_against_its_kernel": float(
            (kernel / kernel.sum(-1, keepdim=True) - softmax_matrix(q, k)).abs().max()
        ),
    }
    return Finding(stated=Measured(worst=max(errors.values()), cases=2), evidence=errors)


def _measured_score_variance(q: Tensor, k: Tensor) -> float:
    """The mean variance of the scores within a row, as the temperature instrument reads it."""
    view = HeadView(q=q.unsqueeze(1), k=k.unsqueeze(1), attention="softmax")
    return float(measure(view, ["temperature"])["temperature"].values[0] ** -2)


def _row_variance(q: Tensor, k: Tensor) -> float:
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    return float(scores.var(-1, correction=0).mean())


def _spread_variance(q: Tensor, k: Tensor) -> float:
    return float(q.var(correction=0) * k.var(correction=0))


def _check_temperature(material: Material, generator: Generator) -> Finding:
    """Checks isotropic heads, heads with queries that vary where keys do not, and real ones."""
    isotropic = gaussian_heads(generator, 512, 32, 1.0)
    directions = torch.ones(32, dtype=torch.float64)
    directions[:16] = 0.1
    skewed = gaussian(generator, 512, 32) * directions, gaussian(generator, 512, 32) / directions
    document = [(head.q, head.k) for head in material.heads]
    heads = [isotropic, skewed, *document]
    errors = [abs(_measured_score_variance(q, k) / _row_variance(q, k) - 1) for q, k in heads]
    stated = [_spread_variance(q, k) / _row_variance(q, k) for q, k in heads]
    return Finding(
        stated=Measured(worst=max(abs(ratio - 1) for ratio in stated), allowed=0.05),
        corrected=Measured(worst=max(errors), cases=len(errors)),
        evidence={
            "claimed_over_true_isotropic": stated[0],
            "claimed_over_true_skewed": stated[1],
            "claimed_over_true_document_heads": stated[2:],
        },
    )


def _check_log_normality(material: Material, generator: Generator) -> Finding:
    """Compares Var(log P) over all entries with sigma^2 and with sigma^2 + sigma^4 / (2 D)."""
    length, dim = (4096 if material.thorough else 2048), 32
    rows = {}
    for variance in (0.25, 1.0, 4.0):
        q, k = gaussian_heads(generator, length, dim, variance)
        rows[variance] = float(log_variance(softmax_matrix(q, k)))
    stated = max(abs(found / variance - 1) for variance, found in rows.items())
    corrected = max(
        abs(found / (variance + variance**2 / (2 * dim)) - 1) for variance, found in rows.items()
    )
    measured = [
        float(log_variance(softmax_matrix(head.q, head.k))) / _spread_variance(head.q, head.k)
        for head in material.heads
    ]
    return Finding(
        stated=Measured(worst=stated, allowed=0.05, cases=len(rows)),
        corrected=Measured(worst=corrected, allowed=0.05, cases=len(rows)),
        evidence={
            "tokens": length,
            "head_size": dim,
            "variance_of_log_P_by_sigma2": {f"{key:g}": value for key, value in rows.items()},
            "corrected_by_sigma2": {f"{key:g}": key + key**2 / (2 * dim) for key in rows},
            "document_heads_measured_over_claimed": measured,
        },
    )


def _score_rows(material: Material, generator: Generator) -> list[Tensor]:
    """Rows of scores [rows, N]: Gaussian, heavy-tailed, tied, and a document's."""
    rows = [gaussian(generator, 32, 64), gaussian(generator, 32, 64) ** 3]
    rows.append(torch.randint(0, 3, (32, 64), generator=generator).double())
    rows += [head.q[:32] @ head.k.mT / math.sqrt(head.q.shape[-1]) for head in material.heads]
    return rows


def _moments(scores: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """p, x - mu and mu of rows."""
    p = (scores / temperature).softmax(-1)
    mean = (p * scores).sum(-1, keepdim=True)
    return p, scores - mean, mean


def _check_first_lemma(material: Material, generator: Generator) -> Finding:
    errors = [
        float((p * deviation).sum(-1).abs().max() / scores.abs().max())
        for scores in _score_rows(material, generator)
        for p, deviation, _ in (_moments(scores, t) for t in TEMPERATURES)
    ]
    return Finding(
        stated=Measured(worst=max(errors), cases=len(errors)), evidence={"error": max(errors)}
    )


def _check_second_lemma(material: Material, generator: Generator) -> Finding:
    least = [
        float((p.square() * deviation).sum(-1).min())
        for scores in _score_rows(material, generator)
        for p, deviation, _ in (_moments(scores, t) for t in TEMPERATURES)
    ]
    return Finding(
        stated=Measured(worst=-min(least), cases=len(least)), evidence={"least_sum": min(least)}
    )


def _check_fourth_lemma(material: Material, generator: Generator) -> Finding:
    errors = []
    for scores in _score_rows(material, generator):
        for temperature in TEMPERATURES:
            p, deviation, mean = _moments(scores, temperature)
            left = (p * scores.square()).sum(-1) - mean.squeeze(-1).square()
            right = (p * deviation.square()).sum(-1)
            errors.append(float((left - right).abs().max() / scores.square().max()))
    return Finding(
        stated=Measured(worst=max(errors), cases=len(errors)), evidence={"error": max(errors)}
    )


def _check_entropy_rises(material: Material, generator: Generator) -> Finding:
    """Checks fixed scores, and shows two heads of which the hotter has the lower entropy."""
    largest_fall = -math.inf
    cases = _score_rows(material, generator)
    for scores in cases:
        entropies = torch.stack(
            [mean_row_entropy((scores / temperature).softmax(-1)) for temperature in TEMPERATURES]
        )
        largest_fall = max(largest_fall, -float(entropies.diff(dim=0).min()))
    sharp, even = _two_heads(generator)
    return Finding(
        stated=Measured(worst=largest_fall, cases=len(cases)),
        evidence={
            "largest_fall": largest_fall,
            "temperatures_of_two_heads": [sharp[0], even[0]],
            "their_entropies": [sharp[1], even[1]],
        },
    )


def _two_heads(generator: Generator) -> tuple[tuple[float, float], tuple[float, float]]:
    """Temperature and entropy of two rows: one score of 64 is high, and half of the 64 are high."""
    one_out, halves = torch.zeros(2, 1, 64, dtype=torch.float64)
    one_out[0, 0], halves[0, :32] = 6.0, 4.0
    found = [
        (1 / float(row.std(correction=0)), float(mean_row_entropy(row.softmax(-1))))
        for row in (one_out, halves)
    ]
    return found[0], found[1]


def _check_variance_falls(material: Material, generator: Generator) -> Finding:
    largest_rise = -math.inf
    cases = _score_rows(material, generator)
    for scores in cases:
        variances = torch.stack(
            [(scores / temperature).softmax(-1).var(-1) for temperature in TEMPERATURES]
        )
        largest_rise = max(largest_rise, float(variances.diff(dim=0).max()))
    return Finding(
        stated=Measured(worst=largest_rise, cases=len(cases)),
        evidence={"largest_rise": largest_rise},
    )


NILPOTENT = ((0.0, 1.0, 0.0), (0.0, 1.0, 0.0), (1.0, 0.0, 0.0))
"""Three states: the third leads to the first, the first to the second, which stays. Every
eigenvalue except 1 is 0."""


def _check_principal_variance(material: Material, generator: Generator) -> Finding:
    chain = torch.tensor(NILPOTENT, dtype=torch.float64)
    second = float(second_modulus(chain))
    variance = float(torch.linalg.matrix_norm(centred(chain), 2)) ** 2
    patterns = [softmax_matrix(*gaussian_heads(generator, 96, 16, s)) for s in (0.5, 2.0, 8.0)]
    patterns += [softmax_matrix(head.q[:128], head.k[:128]) for head in material.heads]
    excess = [
        float(second_modulus(p) - torch.linalg.matrix_norm(centred(p), 2))
        for p in [chain, *patterns]
    ]
    return Finding(
        stated=Measured(worst=abs(second**2 - variance), allowed=1e-6),
        corrected=Measured(worst=max(excess), cases=len(excess)),
        evidence={
            "counterexample": [list(row) for row in NILPOTENT],
            "lambda_2_squared": second**2,
            "sigma_max_squared": variance,
        },
    )


CIRCULANT_SCORES = (0.0, 0.0, -0.1, 0.0, -10.0, -10.0, -10.0)


def _check_gap_rises(material: Material, generator: Generator) -> Finding:
    """Takes circulant scores: their softmax is doubly stochastic, which is unbiased."""
    index = (torch.arange(7) - torch.arange(7)[:, None]) % 7
    scores = torch.tensor(CIRCULANT_SCORES, dtype=torch.float64)[index]
    temperatures = (0.005, 1.0, 50.0)
    gaps = [1 - float(second_modulus((scores / t).softmax(-1))) for t in temperatures]
    columns = max(float(((scores / t).softmax(-1).sum(0) - 1).abs().max()) for t in temperatures)
    hot = (scores / 1e4).softmax(-1)
    return Finding(
        stated=Measured(worst=max(a - b for a, b in pairwise(gaps))),
        corrected=Measured(worst=float(eigenvalues(centred(hot)).abs().max()), allowed=1e-3),
        evidence={
            "counterexample_first_row_of_scores": CIRCULANT_SCORES,
            "temperatures": temperatures,
            "spectral_gaps": gaps,
            "column_sums_miss_one_by": columns,
        },
    )


CLAIMS = (
    Claim(
        id="lln.equations-1-4-7-12-20",
        paper=PAPER,
        statement="Attention, its kernel form, linear attention, entropy and row variance.",
        check=_check_definitions,
        is_definition=True,
    ),
    Claim(
        id="lln.equation-5",
        paper=PAPER,
        statement="The scores' variance is sigma_q^2 sigma_k^2 (+ C_cross); "
        "the temperature is 1 / its root.",
        check=_check_temperature,
        correction=Repair(
            text="True for isotropic q and k. In general it is the mean variance within rows, "
            "tr(Q^T Q Cov(K)) / (N D): exact, O(N D^2), unchanged by a shift of the keys."
        ),
    ),
    Claim(
        id="lln.proposition-3.1",
        paper=PAPER,
        statement="P is approximately log-normal, Var(log P) = sigma_q^2 sigma_k^2 = s^2.",
        check=_check_log_normality,
        correction=Repair(text="Var(log P) = s^2 + s^4 / (2 D), for s^2 well below ln N."),
    ),
    Claim(
        id="lln.lemma-a1",
        paper=PAPER,
        statement="sum_i p_i (x_i - mu) = 0.",
        check=_check_first_lemma,
    ),
    Claim(
        id="lln.lemma-a2",
        paper=PAPER,
        statement="sum_i p_i^2 (x_i - mu) >= 0.",
        check=_check_second_lemma,
    ),
    Claim(
        id="lln.lemma-a4",
        paper=PAPER,
        statement="sum_i p_i x_i^2 - mu^2 = sum_i p_i (x_i - mu)^2.",
        check=_check_fourth_lemma,
    ),
    Claim(
        id="lln.theorem-3.2",
        paper=PAPER,
        statement="The entropy of softmax attention rises with its temperature, scores fixed.",
        check=_check_entropy_rises,
        remark="Between heads it orders nothing: the hotter of two may have the lower entropy.",
    ),
    Claim(
        id="lln.theorem-3.3",
        paper=PAPER,
        statement="lambda_2^2 is the variance of P along its major principal component.",
        check=_check_principal_variance,
        correction=Replacement(
            text="|lambda_2| <= |P without its mean row|_2; equality needs a normal matrix."
        ),
    ),
    Claim(
        id="lln.theorem-3.4",
        paper=PAPER,
        statement="The variance of P falls with temperature (theorem A.3).",
        check=_check_variance_falls,
    ),
    Claim(
        id="lln.section-3.2.2",
        paper=PAPER,
        statement="The spectral gap of unbiased attention rises with temperature.",
        check=_check_gap_rises,
        correction=Replacement(
            text="It tends to 1 as the temperature grows without bound; on the way it may fall."
        ),
    ),
)
