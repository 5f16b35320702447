"""Checks of what Jeronimo et al. claim of descent preconditioned by attention's Fisher matrix."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Generator, Tensor

from engine.claims.claim import Finding, Material, Measured
from engine.claims.matrices import gaussian, jacobian


def check_convergence(material: Material, generator: Generator) -> Finding:
    """Minimises |theta|^2 / 2 over the logits of two keys, one of which gets no attention."""
    growths = {f"{rate:g}": _scheduled_growth(rate) for rate in (1.0, 0.1, 0.01, 0.001)}
    rates = {str(steps): _mean_squared_gradient(generator, steps) for steps in (100, 400, 1600)}
    scaled = [
        math.sqrt(int(steps)) / (1 + math.log(int(steps))) * value for steps, value in rates.items()
    ]
    return Finding(
        stated=Measured(worst=min(growths.values()) - 1, cases=len(growths)),
        corrected=Measured(worst=scaled[-1] / scaled[0] - 1),
        evidence={
            "squared_gradient_grows_by_with_rate_c_over_sqrt_t": growths,
            "mean_squared_gradient_by_steps_with_bounded_eigenvalues": rates,
        },
    )


def _scheduled_growth(rate: float, steps: int = 5) -> float:
    """How much |theta|^2 grows in steps of rate / sqrt(t) with E[A A^T] = diag(a).

    The start depends on the rate: conditions on entropy and Jacobian allow it to be any.
    """
    gap = 9.0 - math.log(rate)
    start = theta = torch.tensor([1.0 + gap, 1.0], dtype=torch.float64)
    for step in range(1, steps + 1):
        share = theta.softmax(-1)
        moved = theta - rate / math.sqrt(step) * theta / share
        theta = torch.where(moved.isfinite(), moved, theta)
    return float(theta.square().sum() / start.square().sum())


def _mean_squared_gradient(
    generator: Generator, steps: int, wobble: Callable[[int], float] = lambda _: 0.0
) -> float:
    """Minimises log cosh by noisy steps 1/(2 sqrt(t)), preconditioned by diag(a), at least 0.1."""
    theta, total = torch.full((32,), 2.0, dtype=torch.float64), 0.0
    for step in range(1, steps + 1):
        gradient = torch.tanh(theta)
        total += float(gradient.square().sum())
        noisy = gradient + 0.5 * gaussian(generator, len(theta))
        weights = theta.softmax(-1).clamp_min(0.1) * (1 + wobble(step))
        theta = theta - noisy / weights / (2 * math.sqrt(step))
    return total / steps


def check_parameter_fisher(material: Material, generator: Generator) -> Finding:
    """W_Q G and W_K G^-T give the same scores for every G: d^2 directions with no information."""
    length, width, dim = 10, 4, 2
    x = gaussian(generator, length, width)
    weights = gaussian(generator, 2, width, dim)

    def log_pattern(both: Tensor) -> Tensor:
        return ((x @ both[0]) @ (x @ both[1]).mT / math.sqrt(dim)).log_softmax(-1)

    gradients = jacobian(log_pattern, weights).flatten(2)
    fisher = torch.einsum("ij,ijm,ijn->mn", log_pattern(weights).exp(), gradients, gradients)
    spectrum = torch.linalg.eigvalsh(fisher)
    null = int((spectrum < 1e-9 * spectrum[-1]).sum())
    return Finding(
        stated=Measured(worst=null, allowed=0),
        corrected=Measured(worst=dim**2 - null, allowed=0),
        evidence={
            "parameters": len(spectrum),
            "d": dim,
            "null_directions": null,
            "least_eigenvalue": float(spectrum[0]),
        },
    )


def check_temperature_schedule(material: Material, generator: Generator) -> Finding:
    """Fits the constants of the printed and of the mended bound at 100 steps, as C_1 = C_2."""
    few, many = 10**2, 10**6
    printed = {steps: (1 + _partial_sum(steps, 0.5)) / math.sqrt(steps) for steps in (few, many)}
    mended = {steps: (1 + _partial_sum(steps, 1.0)) / math.sqrt(steps) for steps in (few, many)}
    start, end = 100, 1600
    measured = {
        steps: _mean_squared_gradient(generator, steps, wobble=lambda t: 0.5 / math.sqrt(t))
        for steps in (start, end)
    }
    excess = max(
        measured[end] / measured[start]
        - (1 + _partial_sum(end, power)) / (1 + _partial_sum(start, power)) / math.sqrt(end / start)
        for power in (0.5, 1.0)
    )
    return Finding(
        stated=Measured(worst=max(excess, mended[many] / mended[few] - 0.5)),
        evidence={
            "printed_bound_by_steps": {str(steps): bound for steps, bound in printed.items()},
            "mended_bound_by_steps": {str(steps): bound for steps, bound in mended.items()},
        },
    )


def _partial_sum(steps: int, power: float) -> float:
    return float(torch.arange(1, steps + 1, dtype=torch.float64).pow(-power).sum())
