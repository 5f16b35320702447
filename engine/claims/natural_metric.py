"""J. Aranda, "Natural Attention: Theoretical Foundations" (2024): F = A A^T as a metric, and how
fast natural gradients descend in it."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from engine.claims.claim import Finding, Material, Measured
from engine.claims.matrices import gaussian, lln_matrix, random_attention

_NUM_PARAMETERS = 6
"""The width of random Fisher matrices and Hessians."""


def check_conjectured_rate(material: Material, generator: Generator) -> Finding:
    """With mu F <= H <= M F the step must be at most 1 / M, which the conjecture leaves out."""
    fisher, hessian, mu, largest = _pencil(generator)
    too_long = _excess_over_rate(fisher, hessian, step=2.5 / largest, rate=2.5 * mu / largest)
    allowed = [
        _excess_over_rate(fisher, hessian, step=share / largest, rate=share * mu / largest)
        for share in (0.1, 0.5, 1.0)
    ]
    return Finding(
        stated=Measured(worst=too_long),
        corrected=Measured(worst=max(allowed), cases=len(allowed)),
        evidence={"mu": mu, "M": largest, "excess_at_step_2.5_over_M": too_long},
    )


def _pencil(generator: Generator) -> tuple[Tensor, Tensor, float, float]:
    """F and H positive definite, and the least and largest eigenvalue of F^-1 H."""
    size = _NUM_PARAMETERS
    root, other = gaussian(generator, size, size), gaussian(generator, size, size)
    eye = torch.eye(size, dtype=torch.float64)
    fisher, hessian = root @ root.mT + eye, other @ other.mT + eye
    triangle = torch.linalg.cholesky(fisher)
    half = torch.linalg.solve_triangular(triangle, hessian, upper=False)
    spectrum = torch.linalg.eigvalsh(torch.linalg.solve_triangular(triangle, half.mT, upper=False))
    return fisher, hessian, float(spectrum[0]), float(spectrum[-1])


def _excess_over_rate(fisher: Tensor, hessian: Tensor, *, step: float, rate: float) -> float:
    """max over t of |theta_t|_F^2 / |theta_0|_F^2 - (1 - rate)^t."""
    ratios = _squared_norms(fisher, hessian, step=step, steps=30)
    return max(ratio - (1 - rate) ** t for t, ratio in enumerate(ratios, start=1))


def _squared_norms(fisher: Tensor, hessian: Tensor, *, step: float, steps: int) -> list[float]:
    """|theta_t|_F^2 / |theta_0|_F^2 after each natural gradient step towards the optimum 0."""
    theta = torch.ones(len(fisher), dtype=torch.float64)
    start = theta @ fisher @ theta
    ratios = []
    for _ in range(steps):
        theta = theta - step * torch.linalg.solve(fisher, hessian @ theta)
        ratios.append(float(theta @ fisher @ theta / start))
    return ratios


def check_least_eigenvalue(material: Material, generator: Generator) -> Finding:
    length, num_channels = 32, 8
    uniform = torch.full((length, length), 1 / length, dtype=torch.float64)
    q, k = (gaussian(generator, length, num_channels) for _ in range(2))
    lln = lln_matrix(q, k, 1.0, 1.0)
    least = {
        "uniform": float(torch.linalg.eigvalsh(uniform @ uniform.mT)[0]),
        f"lln_of_{num_channels}_channels": float(torch.linalg.eigvalsh(lln @ lln.mT)[0]),
    }
    shortfall = max(1 / length - value for value in least.values())
    patterns = [random_attention(generator, length, 8) for _ in range(material.trials(20))]
    patterns += [uniform, lln]
    positive = max(_nonnegative_shortfall(pattern, generator) for pattern in patterns)
    return Finding(
        stated=Measured(worst=shortfall, cases=2),
        corrected=Measured(worst=positive, cases=len(patterns)),
        evidence={"length": length, "claimed_least": 1 / length, "least_eigenvalues": least},
    )


def _nonnegative_shortfall(pattern: Tensor, generator: Generator) -> float:
    """max of |v|^2 / L - |A^T v|^2 over vectors v >= 0 of unit length."""
    length = len(pattern)
    v = torch.rand(length, 64, dtype=torch.float64, generator=generator)
    v = torch.cat([v, torch.eye(length, dtype=torch.float64)], dim=1)
    v = v / v.norm(dim=0)
    return float((1 / length - (pattern.mT @ v).square().sum(0)).max())


def check_lipschitz(material: Material, generator: Generator) -> Finding:
    """The dual norm of a singular F is infinite outside its range; with H <= M F it is bounded."""
    length = 12
    lln = lln_matrix(gaussian(generator, length, 4), gaussian(generator, length, 4), 1.0, 1.0)
    rank = int(torch.linalg.matrix_rank(lln @ lln.mT))
    fisher, hessian, _, largest = _pencil(generator)
    change = gaussian(generator, 200, len(fisher))
    gradient = change @ hessian
    dual = (gradient @ torch.linalg.inv(fisher) * gradient).sum(-1).sqrt()
    primal = (change @ fisher * change).sum(-1).sqrt()
    return Finding(
        stated=Measured(worst=float(length - rank), allowed=0),
        corrected=Measured(worst=float((dual / primal).max()) - largest, cases=len(change)),
        evidence={
            "size": length,
            "rank_of_F_of_an_LLN_pattern": rank,
            "largest_ratio_of_norms": float((dual / primal).max()),
            "M": largest,
        },
    )


def check_natural_gradient_rate(material: Material, generator: Generator) -> Finding:
    """Takes a loss that is flat in the natural metric: Hessian 0.001 F, L = 16, 200 steps of 1."""
    length, steps = 16, 200
    fisher, hessian, mu, largest = _pencil(generator)
    ratio = _squared_norms(fisher, 1e-3 * fisher, step=1.0, steps=steps)[-1]
    claimed = (1 - 1 / length) ** steps
    bounded = _excess_over_rate(fisher, hessian, step=1 / largest, rate=mu / largest)
    return Finding(
        stated=Measured(worst=ratio - claimed),
        corrected=Measured(worst=bounded),
        evidence={"steps": steps, "length": length, "ratio": ratio, "claimed_ratio": claimed},
    )
