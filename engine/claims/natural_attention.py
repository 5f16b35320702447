"""J. Aranda, "Natural Attention: Theoretical Foundations" (2024): all its claims.

Those about the form and the scale of a pattern are checked here, the others in natural_metric.py
and natural_information.py.
"""

from __future__ import annotations

import math

from torch import Generator, Tensor

from engine.claims.claim import Claim, Finding, Material, Measured, Repair, Replacement
from engine.claims.matrices import gaussian, softmax_matrix
from engine.claims.natural_information import (
    check_entropy_bound,
    check_frobenius_information,
    check_information,
    check_strong_information,
)
from engine.claims.natural_metric import (
    check_conjectured_rate,
    check_least_eigenvalue,
    check_lipschitz,
    check_natural_gradient_rate,
)

PAPER = "Natural Attention: Theoretical Foundations"

_TOKENS, _WIDTH = 12, 8
"""The size of random inputs."""


def _attention(x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor) -> Tensor:
    return softmax_matrix(x @ w_q, x @ w_k) @ (x @ w_v)


def _energies(x: Tensor, w_q: Tensor, w_k: Tensor) -> Tensor:
    return x @ w_q @ w_k.mT @ x.mT / math.sqrt(x.shape[-1])


def _check_definition(material: Material, generator: Generator) -> Finding:
    x = gaussian(generator, _TOKENS, _WIDTH)
    w_q, w_k, w_v = (gaussian(generator, _WIDTH, _WIDTH) for _ in range(3))
    pattern = softmax_matrix(x @ w_q, x @ w_k)
    row_error = (pattern.sum(-1) - 1).abs().max()
    output_error = (_attention(x, w_q, w_k, w_v).sum(-1) - 1).abs().max()
    return Finding(
        stated=Measured(worst=float(row_error)),
        evidence={
            "pattern_row_sums_miss_one_by": float(row_error),
            "output_row_sums_miss_one_by": float(output_error),
        },
    )


def _check_energy_form(material: Material, generator: Generator) -> Finding:
    x = gaussian(generator, _TOKENS, _WIDTH)
    w_q, w_k = (gaussian(generator, _WIDTH, _WIDTH) for _ in range(2))
    by_definition = (x @ w_q) @ (x @ w_k).mT / math.sqrt(_WIDTH)
    error = (by_definition - _energies(x, w_q, w_k)).abs().max()
    return Finding(stated=Measured(worst=float(error)), evidence={"error": float(error)})


def _check_energy_bound(material: Material, generator: Generator) -> Finding:
    """Checks each head alone, with |W|_F^2 = d: the sum over heads follows."""
    dim = _WIDTH
    ratios = []
    for _ in range(material.trials(200)):
        x = gaussian(generator, _TOKENS, dim)
        w_q, w_k = (_normalised(gaussian(generator, dim, dim), dim) for _ in range(2))
        ratios.append(float(_energies(x, w_q, w_k).square().sum() / (dim * x.square().sum() ** 2)))
    direction = _normalised(gaussian(generator, 1, dim), 1)
    aligned = _normalised(direction.mT @ direction, dim)
    x = gaussian(generator, _TOKENS, 1) @ direction
    tight = float(_energies(x, aligned, aligned).square().sum() / (dim * x.square().sum() ** 2))
    return Finding(
        stated=Measured(worst=max(*ratios, tight) - 1, cases=len(ratios) + 1),
        evidence={
            "largest_ratio_random": max(ratios),
            "ratio_aligned_rank_one": tight,
        },
    )


def _normalised(weight: Tensor, squared_norm: float) -> Tensor:
    scaled: Tensor = weight * math.sqrt(squared_norm) / weight.norm()
    return scaled


def _check_scale_invariance(material: Material, generator: Generator) -> Finding:
    x = gaussian(generator, 16, _WIDTH)
    weights = [gaussian(generator, _WIDTH, _WIDTH) / math.sqrt(_WIDTH) for _ in range(3)]
    base, behind = _attention(x, *weights), _attention(_rms_norm(x), *weights)
    scales = (0.1, 2.0, 10.0)
    errors = [float((_attention(s * x, *weights) - base).norm() / base.norm()) for s in scales]
    normed = [
        float((_attention(_rms_norm(s * x), *weights) - behind).norm() / behind.norm())
        for s in scales
    ]
    return Finding(
        stated=Measured(worst=max(errors), cases=len(scales)),
        corrected=Measured(worst=max(normed), cases=len(scales)),
        evidence={
            "scales": scales,
            "relative_errors": errors,
            "relative_errors_behind_rms_norm": normed,
        },
    )


def _rms_norm(x: Tensor) -> Tensor:
    normed: Tensor = x / x.square().mean(-1, keepdim=True).sqrt()
    return normed


_SAMPLED_KEY = "for one key drawn from a row, "

CLAIMS = (
    Claim(
        id="natural-attention.definition-1",
        paper=PAPER,
        statement="A(X) = softmax(X W_Q W_K^T X^T / sqrt(d)) X W_V.",
        check=_check_definition,
        remark="Later proofs take A for the stochastic pattern, which this output is not.",
        is_definition=True,
    ),
    Claim(
        id="natural-attention.lemma-2",
        paper=PAPER,
        statement="The energy matrix is E = Q K^T / sqrt(d) = X W_Q W_K^T X^T / sqrt(d).",
        check=_check_energy_form,
        is_definition=True,
    ),
    Claim(
        id="natural-attention.theorem-3",
        paper=PAPER,
        statement="With |W_Q|_F^2 = |W_K|_F^2 = d, sum_h tr(E_h E_h^T) <= d H |X|_F^4.",
        check=_check_energy_bound,
        remark="An upper bound, which aligned weights of rank one attain; nothing is conserved.",
    ),
    Claim(
        id="natural-attention.theorem-4",
        paper=PAPER,
        statement="A(a X) = A(X) for every a > 0.",
        check=_check_scale_invariance,
        correction=Replacement(text="A(norm(a X)) = A(norm(X)) behind RMSNorm without epsilon."),
    ),
    Claim(
        id="natural-attention.conjecture-5",
        paper=PAPER,
        statement="If the loss is mu-strongly convex in the metric F = A A^T, natural gradient "
        "steps satisfy |theta_t - theta*|_F^2 <= (1 - eta mu)^t |theta_0 - theta*|_F^2.",
        check=check_conjectured_rate,
        correction=Repair(
            text="The rate holds if F is fixed and positive definite, "
            "mu F <= Hessian <= M F, and eta <= 1 / M."
        ),
    ),
    Claim(
        id="natural-attention.theorem-7",
        paper=PAPER,
        statement="I(X; A(X)) <= log L.",
        check=check_information,
        correction=Replacement(text=f"I <= log L {_SAMPLED_KEY}not for the whole pattern.".strip()),
    ),
    Claim(
        id="natural-attention.conjecture-8",
        paper=PAPER,
        statement="If training minimises a loss + lambda |A|_F^2, I(X; A(X)) <= "
        "E|A|_F^2 / (2 lambda).",
        check=check_frobenius_information,
        correction=Replacement(text=f"I <= log E|A|_F^2, {_SAMPLED_KEY}in place of A(X)."),
    ),
    Claim(
        id="natural-attention.lemma-10",
        paper=PAPER,
        statement="F = A A^T is positive definite, with least eigenvalue >= 1 / L.",
        check=check_least_eigenvalue,
        correction=Replacement(text="|A^T v|^2 >= |v|^2 / L for vectors v >= 0."),
    ),
    Claim(
        id="natural-attention.lemma-11",
        paper=PAPER,
        statement="|grad(theta_1) - grad(theta_2)| in F^-1 is at most L |theta_1 - theta_2| in F, "
        "for F = A A^T.",
        check=check_lipschitz,
        correction=Replacement(
            text="F^-1 need not exist. If F > 0 and 0 <= Hessian <= M F, the constant is M."
        ),
    ),
    Claim(
        id="natural-attention.theorem-12",
        paper=PAPER,
        statement="|theta_t - theta*|_F^2 <= (1 - eta / L)^t |theta_0 - theta*|_F^2 for F = A A^T.",
        check=check_natural_gradient_rate,
        correction=Replacement(
            text="The rate is 1 - eta mu with mu from mu F <= Hessian <= M F and eta <= 1 / M; "
            "the sequence length does not enter."
        ),
    ),
    Claim(
        id="natural-attention.lemma-13",
        paper=PAPER,
        statement="H(A) <= |A|_F^2 / 2 + log L.",
        check=check_entropy_bound,
        remark="Of the mean entropy of a row the printed bound is true but idle: that is at most "
        "log L already.",
        correction=Replacement(
            text="The sign is the other one: "
            "-log(|A|_F^2 / L) <= mean row entropy <= log L - (|A|_F^2 - 1) / (2 L)."
        ),
    ),
    Claim(
        id="natural-attention.theorem-14",
        paper=PAPER,
        statement="If training minimises a loss + lambda |A|_F^2, I(X; A(X)) <= "
        "E|A|_F^2 / (2 lambda) + log L.",
        check=check_strong_information,
        correction=Replacement(
            text=f"I <= min(log L, log E|A|_F^2), {_SAMPLED_KEY}in place of A(X)."
        ),
    ),
)
