"""Jeronimo et al., "Fisher Information Matrix Approximation for Attention Distribution" (2024)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Generator, Tensor

from engine.claims import fisher_descent, head_scales
from engine.claims.claim import (
    ANY_CONSTANT,
    Claim,
    Finding,
    Material,
    Measured,
    Repair,
    Replacement,
)
from engine.claims.matrices import (
    covariance,
    gaussian,
    jacobian,
    random_attention,
    softmax_matrix,
)
from engine.diagnostics.rows import entropy_of_probabilities

PAPER = "Fisher Information Matrix Approximation for Attention Distribution"

_ROWS_A_HEAD = 8
"""Rows of the document's attention that are checked."""


def _check_definition(material: Material, generator: Generator) -> Finding:
    rows = gaussian(generator, 100, 16).softmax(-1)
    error = float((rows.sum(-1) - 1).abs().max())
    return Finding(
        stated=Measured(worst=max(error, -float(rows.min())), cases=len(rows)),
        evidence={"row_sums_miss_one_by": error, "least_entry": float(rows.min())},
    )


def _check_softmax_gradient(material: Material, generator: Generator) -> Finding:
    logits = gaussian(generator, 20, 12)
    errors = [
        float((jacobian(_softmax, row) - covariance(_softmax(row))).abs().max()) for row in logits
    ]
    return Finding(
        stated=Measured(worst=max(errors), cases=len(errors)),
        evidence={"error_against_autograd": max(errors)},
    )


def _softmax(logits: Tensor) -> Tensor:
    return logits.softmax(-1)


def _check_decomposition(material: Material, generator: Generator) -> Finding:
    error = max(_fisher_errors(generator)[0] for _ in range(material.trials(5)))
    return Finding(stated=Measured(worst=error), evidence={"error_against_autograd": error})


def _fisher_errors(generator: Generator) -> tuple[float, float]:
    """Errors of J^T (diag(a) - a a^T) J against autograd: J of the logits, then J of a."""
    x, mixing = gaussian(generator, 5), gaussian(generator, 8, 5)
    theta = gaussian(generator, 5, 5)

    def logits(weight: Tensor) -> Tensor:
        return mixing @ torch.tanh(weight @ x)

    share = logits(theta).softmax(-1)
    scores = _flat_jacobian(lambda w: logits(w).log_softmax(-1), theta)
    exact = scores.mT @ torch.diag(share) @ scores
    of_logits = _flat_jacobian(logits, theta)
    of_shares = _flat_jacobian(lambda w: logits(w).softmax(-1), theta)
    forms = [j.mT @ covariance(share) @ j for j in (of_logits, of_shares)]
    one, other = (float((form - exact).norm() / exact.norm()) for form in forms)
    return one, other


def _flat_jacobian(function: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    return jacobian(function, at).flatten(1)


def _check_fisher_of_patterns(material: Material, generator: Generator) -> Finding:
    """C.4 calls phi "attention patterns"; the formula gives the Fisher matrix only of logits."""
    of_logits, of_shares = _fisher_errors(generator)
    return Finding(
        stated=Measured(worst=of_shares),
        corrected=Measured(worst=of_logits),
        evidence={"error_with_logits": of_logits, "error_with_patterns": of_shares},
    )


def _check_sampling(material: Material, generator: Generator) -> Finding:
    """Enumerates every outcome: A = e_i with probability a_i at temperature tau."""
    logits = gaussian(generator, 12)
    outcomes = torch.eye(len(logits), dtype=torch.float64)
    errors, exactness = {}, 0.0
    for temperature in (1.0, 1e-2, 1e-4, 1e-6):
        share = (logits / temperature).softmax(-1)
        second_moment = torch.einsum("i,ij,ik->jk", share, outcomes, outcomes)
        error = float(torch.linalg.matrix_norm(second_moment - covariance(share), 2))
        errors[f"{temperature:g}"] = error
        spread = second_moment - torch.outer(share, share)
        exactness = max(exactness, float((spread - covariance(share)).abs().max()))
    return Finding(
        stated=Measured(worst=errors["1e-06"] - ANY_CONSTANT * 1e-6),
        corrected=Measured(worst=exactness, cases=len(errors)),
        evidence={"error_by_temperature": errors},
    )


def _check_error_bound(material: Material, generator: Generator) -> Finding:
    """A row that sees one key has entropy 0 and error 1."""
    one_hot = torch.eye(8, dtype=torch.float64)[0]
    rows = _many_rows(material, generator)
    error = _second_moment_error(one_hot)
    return Finding(
        stated=Measured(worst=error - ANY_CONSTANT * float(_entropy(one_hot))),
        corrected=Measured(worst=max(map(_outside_bounds, rows)), cases=len(rows)),
        evidence={
            "counterexample": one_hot.tolist(),
            "entropy": float(_entropy(one_hot)),
            "error": error,
            "document_rows": _ROWS_A_HEAD * len(material.heads),
        },
    )


def _many_rows(material: Material, generator: Generator) -> list[Tensor]:
    spreads = (0.1, 1.0, 4.0, 16.0)
    patterns = [random_attention(generator, 24, 8, spread) for spread in spreads]
    patterns += [softmax_matrix(head.q, head.k)[:_ROWS_A_HEAD] for head in material.heads]
    return [row for pattern in patterns for row in pattern]


def _entropy(row: Tensor) -> Tensor:
    return entropy_of_probabilities(row)


def _second_moment_error(row: Tensor) -> float:
    """|diag(a) - a a^T - E[A A^T]| in the spectral norm."""
    return float(torch.linalg.matrix_norm(covariance(row) - torch.diag(row), 2))


def _outside_bounds(row: Tensor) -> float:
    """error = |a|^2 >= exp(-H), and |M| <= tr M = 1 - |a|^2 <= H."""
    squared, entropy = float(row @ row), float(_entropy(row))
    spread = covariance(row)
    norm, trace = float(torch.linalg.matrix_norm(spread, "fro")), float(spread.trace())
    return max(
        abs(float(torch.outer(row, row).norm()) - squared),  # the norm of a rank-one matrix
        math.exp(-entropy) - squared,
        norm - trace,
        abs(trace - (1 - squared)),
        trace - entropy,
    )


def _check_concentration(material: Material, generator: Generator) -> Finding:
    logits = gaussian(generator, 16)
    spread_out, sharp = (logits / tau for tau in (5.0, 0.05))
    errors = {
        name: _second_moment_error(row) / float(torch.linalg.matrix_norm(covariance(row), 2))
        for name, row in (("even", spread_out.softmax(-1)), ("sharp", sharp.softmax(-1)))
    }
    rows = _many_rows(material, generator)
    norms = [
        float(torch.linalg.matrix_norm(covariance(row), "fro") - _entropy(row)) for row in rows
    ]
    return Finding(
        stated=Measured(worst=errors["sharp"] - errors["even"]),
        corrected=Measured(worst=max(norms), cases=len(rows)),
        evidence={
            "relative_error": errors,
            "fisher_norm_when_sharp": float(covariance(sharp.softmax(-1)).norm()),
        },
    )


CLAIMS = (
    Claim(
        id="attention-fisher.definition-1",
        paper=PAPER,
        statement="An attention mechanism is softmax(z(x, theta)), a point of the simplex.",
        check=_check_definition,
        is_definition=True,
    ),
    Claim(
        id="attention-fisher.lemma-1",
        paper=PAPER,
        statement="The gradient of softmax is a_i (delta_ij - a_j).",
        check=_check_softmax_gradient,
    ),
    Claim(
        id="attention-fisher.theorem-1",
        paper=PAPER,
        statement="FIM = E[J^T (diag(a) - a a^T) J] with J the Jacobian of the logits.",
        check=_check_decomposition,
    ),
    Claim(
        id="attention-fisher.lemma-2",
        paper=PAPER,
        statement="For A sampled at temperature tau, E[A A^T] = diag(a) - a a^T + O(tau).",
        check=_check_sampling,
        correction=Replacement(
            text="E[A A^T] = diag(a_tau), and Cov(A) = diag(a_tau) - a_tau a_tau^T exactly."
        ),
    ),
    Claim(
        id="attention-fisher.proposition-1",
        paper=PAPER,
        statement="|diag(a) - a a^T - E[A A^T]| <= C H(a).",
        check=_check_error_bound,
        correction=Replacement(
            text="It is the other way round: the error is |a|^2 >= exp(-H). "
            "What the entropy bounds is the matrix itself: |M| <= tr M = 1 - |a|^2 <= H."
        ),
    ),
    Claim(
        id="attention-fisher.remark-1",
        paper=PAPER,
        statement="What attention captures of the geometry improves as it concentrates.",
        check=_check_concentration,
        correction=Replacement(
            text="As attention concentrates the Fisher matrix vanishes: its norm is at most H(a)."
        ),
    ),
    Claim(
        id="attention-fisher.theorem-2",
        paper=PAPER,
        statement="Natural gradient descent with E[A A^T] converges at rate 1 / sqrt(T) if the "
        "entropy is bounded, the Jacobian has full rank and the rate is scheduled.",
        check=fisher_descent.check_convergence,
        correction=Repair(
            text="With a rate of c / sqrt(t), O(log T / sqrt(T)) follows from bounded eigenvalues "
            "of the preconditioner alone, which these conditions do not give."
        ),
    ),
    Claim(
        id="attention-fisher.definition-2.3",
        paper=PAPER,
        statement="The least eigenvalue of the FIM of (W_Q, W_K) is positive.",
        check=fisher_descent.check_parameter_fisher,
        correction=Replacement(
            text="Every head has at least d^2 null directions: (W_Q G, W_K G^-T) is the same head."
        ),
    ),
    Claim(
        id="attention-fisher.theorem-3",
        paper=PAPER,
        statement="With tau_t = tau_0 / sqrt(t), E|grad|^2 <= (C_1 + C_2 sum_t tau_t) / sqrt(T) "
        "for constants C_1 and C_2.",
        check=fisher_descent.check_temperature_schedule,
        is_unproved=True,
        remark="The bound tends to 2 C_2 tau_0, not to zero, so it says little. With bounded "
        "preconditioners a tighter one held: (C_1 + C_2 sum_t tau_t eta_t) / sqrt(T) = "
        "O(log T / sqrt(T)).",
    ),
    Claim(
        id="attention-fisher.theorem-4",
        paper=PAPER,
        statement="S_eff(phi) is the integral of exp(-S) over the finer scales.",
        check=head_scales.check_effective_action,
        correction=Replacement(text="S_eff is minus the logarithm of that integral."),
    ),
    Claim(
        id="attention-fisher.proposition-2",
        paper=PAPER,
        statement="|<A_s A_t>| <= C exp(-|s - t| / xi) for heads of scales s and t.",
        check=head_scales.check_scale_separation,
        correction=Replacement(
            text="It depends on the ratio: Gaussian kernels of widths s and t in R^D have cosine "
            "sech(ln(s / t))^(D / 2)."
        ),
    ),
    Claim(
        id="attention-fisher.section-c4",
        paper=PAPER,
        statement="FIM = sum over scales of E[(dphi)^T M dphi], phi the attention patterns.",
        check=_check_fisher_of_patterns,
        correction=Repair(text="True if phi means the logits."),
    ),
    Claim(
        id="attention-fisher.section-c5",
        paper=PAPER,
        statement="Temperature sets a head's scale: a hotter head sees further.",
        check=head_scales.check_cutoff_scale,
        correction=Replacement(
            text="For scores -(i - j)^2 / (2 s^2) the width is s sqrt(tau); a head whose scores "
            "grow with distance sees nearer tokens as it gets hotter."
        ),
    ),
)
