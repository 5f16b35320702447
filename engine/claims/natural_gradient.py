"""J. Aranda Barois, "Attention as Natural Gradient" (2024): patterns taken for Fisher matrices."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Generator, Tensor

from engine.claims.claim import Claim, Finding, Material, Measured, Replacement
from engine.claims.matrices import (
    cosine,
    covariance,
    gaussian,
    jacobian,
    lln_matrix,
    mean_row_entropy,
    random_attention,
    softmax_matrix,
)

PAPER = "Attention as Natural Gradient"
APPROXIMATE = 0.1
"""The largest relative error that counts as "approximately"."""


def _relative(found: Tensor, true: Tensor) -> float:
    return float((found - true).norm() / true.norm())


def _check_fisher(material: Material, generator: Generator) -> Finding:
    patterns = [random_attention(generator, 12, 8) for _ in range(material.trials(20))]
    by_row = min(_relative(row[:, None] * row, covariance(row)) for p in patterns for row in p)
    by_pattern = min(_relative(p @ p.mT, covariance(p).sum(0)) for p in patterns)
    error = _bilinear_error(generator)
    return Finding(
        stated=Measured(worst=min(by_row, by_pattern), allowed=APPROXIMATE, cases=len(patterns)),
        corrected=Measured(worst=error),
        evidence={
            "least_relative_error_of_a_aT": by_row,
            "least_relative_error_of_A_AT": by_pattern,
            "error_of_the_exact_form_against_autograd": error,
        },
    )


def _bilinear_error(generator: Generator) -> float:
    """(1/d) sum_i x_i x_i^T (x) Cov_{a_i}(x) against the Fisher matrix of M by autograd."""
    length, dim = 6, 3
    x, bilinear = gaussian(generator, length, dim), gaussian(generator, dim, dim)

    def log_pattern(weight: Tensor) -> Tensor:
        return (x @ weight @ x.mT / math.sqrt(dim)).log_softmax(-1)

    exact = _fisher_by_autograd(log_pattern, bilinear)
    keys = x.mT @ covariance(log_pattern(bilinear).exp()) @ x  # [N, D, D]
    formula = torch.stack(
        [torch.kron(torch.outer(row, row), spread) for row, spread in zip(x, keys, strict=True)]
    )
    return float((formula.sum(0) / dim - exact).abs().max())


def _fisher_by_autograd(log_pattern: Callable[[Tensor], Tensor], weight: Tensor) -> Tensor:
    """sum_ij a_ij grad(log a_ij) grad(log a_ij)^T over all parameters of the weight."""
    gradients = jacobian(log_pattern, weight).flatten(2)  # [N, N, parameters]
    share = log_pattern(weight).exp()
    return torch.einsum("ij,ijm,ijn->mn", share, gradients, gradients)


def _check_blocks(material: Material, generator: Generator) -> Finding:
    """Takes two groups of tokens that attend within themselves: A is high there, F is negative."""
    length, group_size = 12, 6
    token = torch.arange(length)
    group = token // group_size
    is_alike = group[:, None] == group
    scores = 3.0 * is_alike.double() + 0.1 * gaussian(generator, length, length)
    pattern = scores.softmax(-1)
    same = is_alike & ~torch.eye(length, dtype=torch.bool)
    fisher = covariance(pattern)  # of each query's distribution
    by_query = fisher[token, token]  # row i of query i's own matrix
    relative = _relative(by_query[same], pattern[same])
    mean_fisher = fisher.mean(0)
    logits = gaussian(generator, 8)
    exact = _fisher_by_autograd(lambda z: z.log_softmax(-1), logits.unsqueeze(0))
    share = logits.softmax(-1)
    off = ~torch.eye(len(logits), dtype=torch.bool)
    error = float((exact + torch.outer(share, share))[off].abs().max())
    return Finding(
        stated=Measured(worst=relative, allowed=APPROXIMATE),
        corrected=Measured(worst=max(error, float(mean_fisher[same].max()))),
        evidence={
            "mean_attention_within_a_group": float(pattern[same].mean()),
            "mean_fisher_within_a_group": float(mean_fisher[same].mean()),
            "relative_error": relative,
        },
    )


def _check_inverse(material: Material, generator: Generator) -> Finding:
    """Compares I + A at its best scale with F^+, and its step with the plain gradient's."""
    length = 16
    eye = torch.eye(length, dtype=torch.float64)
    errors, steps, plain, remainders = [], [], [], []
    for _ in range(material.trials(20)):
        pattern = random_attention(generator, length, 8)
        fisher = covariance(pattern).mean(0)
        wanted, offered = torch.linalg.pinv(fisher, hermitian=True), eye + pattern
        errors.append(math.sqrt(1 - cosine(wanted, offered) ** 2))
        gradient = gaussian(generator, length)
        damped = torch.linalg.solve(fisher + eye, gradient)
        steps.append(cosine(damped, offered @ gradient))
        plain.append(cosine(damped, gradient))
        size = float(torch.linalg.matrix_norm(fisher, 2))
        exact = torch.linalg.inv(fisher + eye)
        left = float(torch.linalg.matrix_norm(exact - (eye - fisher), 2))
        remainders.append(left - size**2 / (1 - size))
    return Finding(
        stated=Measured(worst=min(errors), allowed=APPROXIMATE, cases=len(errors)),
        corrected=Measured(worst=max(remainders), cases=len(remainders)),
        evidence={
            "relative_errors_at_best_scale": [min(errors), max(errors)],
            "mean_cosine_of_the_step_to_the_damped_one": sum(steps) / len(steps),
            "mean_cosine_of_the_plain_gradient": sum(plain) / len(plain),
        },
    )


def _check_conditioning(material: Material, generator: Generator) -> Finding:
    """A loss whose Hessian is the identity has the best condition number, until F enters."""
    length = 16
    pattern = random_attention(generator, length, 8)
    spectrum = torch.linalg.eigvalsh(pattern @ pattern.mT)
    made_worse = float(spectrum[-1] / spectrum[0])
    root = gaussian(generator, length, length)
    fisher = root @ root.mT + torch.eye(length, dtype=torch.float64)
    matched = torch.linalg.solve(fisher, 2.0 * fisher)
    values = torch.linalg.eigvals(matched).real
    return Finding(
        stated=Measured(worst=made_worse, allowed=1.0),
        corrected=Measured(worst=float(values.max() / values.min()) - 1),
        evidence={
            "condition_number_before": 1.0,
            "condition_number_with_F": made_worse,
            "condition_number_of_the_matched_Hessian_before": float(torch.linalg.cond(fisher)),
        },
    )


def _check_optimizer(material: Material, generator: Generator) -> Finding:
    """Compares the printed solve with A A^T to Kronecker factors of the exact Fisher matrix."""
    length, width, dim = 48, 6, 4
    lln = lln_matrix(gaussian(generator, 16, 4), gaussian(generator, 16, 4), 1.0, 1.0)
    deficit = len(lln) - int(torch.linalg.matrix_rank(lln @ lln.mT))
    kept, printed, identity, errors = [], [], [], []
    for _ in range(material.trials(5)):
        x = gaussian(generator, length, width)
        w_q, w_k = (gaussian(generator, width, dim) / math.sqrt(width) for _ in range(2))
        exact, error = _query_fisher(x, w_q, w_k)
        pattern, keys = softmax_matrix(x @ w_q, x @ w_k), x @ w_k
        shared = keys.mT @ torch.diag(pattern.sum(0)) @ keys
        factor = shared - (pattern @ keys).mT @ (pattern @ keys)
        eye = torch.eye(dim, dtype=torch.float64)
        kept.append(cosine(exact, torch.kron(x.mT @ x, factor)))
        printed.append(cosine(exact, torch.kron(x.mT @ pattern @ pattern.mT @ x, eye)))
        identity.append(cosine(exact, torch.eye(width * dim, dtype=torch.float64)))
        errors.append(error)
    least = 0.85
    return Finding(
        stated=Measured(worst=deficit, allowed=0),
        corrected=Measured(worst=max(least - min(kept), max(errors)), cases=len(kept)),
        evidence={
            f"null_directions_of_A_AT_of_an_LLN_pattern_of_{len(lln)}": deficit,
            "cosine_of_the_kronecker_form": min(kept),
            "cosine_of_the_printed_form": max(printed),
            "cosine_of_the_identity": max(identity),
            "error_of_the_exact_form_against_autograd": max(errors),
            "shapes": "A A^T is N x N; the gradient it is to solve for is D x d",
        },
    )


def _query_fisher(x: Tensor, w_q: Tensor, w_k: Tensor) -> tuple[Tensor, float]:
    """F_Q = (1/d) sum_i x_i x_i^T (x) Cov_{a_i}(k), and its error against autograd."""
    dim = w_q.shape[1]
    keys = x @ w_k

    def log_pattern(weight: Tensor) -> Tensor:
        return (x @ weight @ keys.mT / math.sqrt(dim)).log_softmax(-1)

    spreads = keys.mT @ covariance(log_pattern(w_q).exp()) @ keys  # [N, d, d]
    formula = torch.einsum("na,nb,ncd->acbd", x, x, spreads).flatten(2).flatten(0, 1) / dim
    exact = _fisher_by_autograd(log_pattern, w_q)
    return formula, float((formula - exact).abs().max() / exact.abs().max())


def _check_coarse_graining(material: Material, generator: Generator) -> Finding:
    """Two layers may sharpen as well as blur; the product of their patterns only blurs."""
    x = gaussian(generator, 24, 8)
    blurred, sharp = (softmax_matrix(scale * x, x) for scale in (0.1, 3.0))
    fall = float(mean_row_entropy(blurred) - mean_row_entropy(sharp))
    found = [float(mean_row_entropy(softmax_matrix(head.q, head.k))) for head in material.heads]
    excess = []
    for _ in range(material.trials(50)):
        one, other = (random_attention(generator, 12, 4, spread) for spread in (1.0, 4.0))
        excess.append(_contraction(other @ one) - _contraction(other) * _contraction(one))
    return Finding(
        stated=Measured(worst=fall, cases=1),
        corrected=Measured(worst=max(excess), cases=len(excess)),
        evidence={
            "entropy_falls_by_between_two_layers": fall,
            "entropy_of_document_heads_by_layer": found,
        },
    )


def _contraction(pattern: Tensor) -> float:
    """Half the largest L1 distance between two rows: how much of a difference can pass."""
    return float(torch.cdist(pattern, pattern, p=1).max() / 2)


CLAIMS = (
    Claim(
        id="natural-gradient.theorem-1",
        paper=PAPER,
        statement="The Fisher information of an attention layer is approximately E[A A^T].",
        check=_check_fisher,
        correction=Replacement(
            text="Of a row's logits it is diag(a) - a a^T; of M = W_Q W_K^T it is "
            "(1/d) sum_i x_i x_i^T (x) Cov_{a_i}(x)."
        ),
    ),
    Claim(
        id="natural-gradient.theorem-2",
        paper=PAPER,
        statement="For tokens of one structure FIM_ij is approximately A_ij, a high value.",
        check=_check_blocks,
        correction=Replacement(text="Off the diagonal FIM_ij = -a_i a_j <= 0."),
    ),
    Claim(
        id="natural-gradient.theorem-3",
        paper=PAPER,
        statement="F^-1 grad L is approximately (I + A) grad L.",
        check=_check_inverse,
        correction=Replacement(
            text="F has no inverse. With damping 1, (F + I)^-1 = I - F + remainder, with "
            "|remainder| <= |F|^2 / (1 - |F|): F in place of A, and the other sign."
        ),
    ),
    Claim(
        id="natural-gradient.theorem-4",
        paper=PAPER,
        statement="Preconditioning with attention improves the condition number.",
        check=_check_conditioning,
        correction=Replacement(
            text="It does where F resembles the Hessian (H = c F gives 1), and harms elsewhere."
        ),
    ),
    Claim(
        id="natural-gradient.section-3.2",
        paper=PAPER,
        statement="From layer to layer attention becomes coarser, as under renormalisation.",
        check=_check_coarse_graining,
        correction=Replacement(
            text="Nothing ties a layer's pattern to the one before. What becomes coarser is their "
            "product: t(P_2 P_1) <= t(P_2) t(P_1), t half the largest L1 distance of two rows."
        ),
    ),
    Claim(
        id="natural-gradient.fa-adam",
        paper=PAPER,
        statement="FA-Adam and its multi-scale form solve (A A^T) step = grad for each parameter.",
        check=_check_optimizer,
        correction=Replacement(
            text="The solve is singular and of the wrong shape. F_Q = (1/d) sum_i x_i x_i^T (x) "
            "Cov_{a_i}(k) is exact, and (X^T X) (x) (K^T diag(P^T 1) K - (P K)^T (P K)) / (N d), "
            "damped, keeps a cosine of at least 0.85 to it."
        ),
    ),
)
