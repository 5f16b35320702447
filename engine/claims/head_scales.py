"""Checks of what Jeronimo et al. claim of the scales at which heads look."""

from __future__ import annotations

import math

import torch
from torch import Generator

from engine.claims.claim import ANY_CONSTANT, Finding, Material, Measured
from engine.claims.matrices import gaussian_overlap


def check_effective_action(material: Material, generator: Generator) -> Finding:
    """Takes S = (2 x^2 + 2 x y + 3 y^2) / 2 and integrates y out on a grid."""
    x = torch.linspace(-8, 8, 1601, dtype=torch.float64)
    action = 0.5 * (2 * x[:, None] ** 2 + 2 * x[:, None] * x + 3 * x**2)
    integral = torch.exp(-action).sum(1) * (x[1] - x[0])
    marginal = integral / integral.sum()
    printed = torch.exp(-integral)
    printed /= printed.sum()
    exact = torch.exp(-0.5 * (2 - 1 / 3) * x**2)
    exact /= exact.sum()
    with_logarithm = torch.exp(integral.log())
    with_logarithm /= with_logarithm.sum()
    density, middle = x[1] - x[0], len(x) // 2
    return Finding(
        stated=Measured(worst=float((printed - marginal).abs().max() / density)),
        corrected=Measured(worst=float((with_logarithm - exact).abs().max() / density)),
        evidence={
            "density_at_0": float(marginal[middle] / density),
            "density_at_0_as_printed": float(printed[middle] / density),
        },
    )


def check_scale_separation(material: Material, generator: Generator) -> Finding:
    """Heads of widths s and 2 s overlap alike however far apart s and 2 s are."""
    dimension = 2
    far = gaussian_overlap(1e6, 2e6) ** dimension
    bound = ANY_CONSTANT * math.exp(-1e6 / ANY_CONSTANT)
    ratios = (1.0, 1.5, 2.0, 5.0, 20.0)
    errors = [
        abs(
            gaussian_overlap(1.0, ratio) ** dimension
            - (1 / math.cosh(math.log(ratio))) ** (dimension / 2)
        )
        for ratio in ratios
    ]
    return Finding(
        stated=Measured(worst=far - bound),
        corrected=Measured(worst=max(errors), allowed=1e-6, cases=len(ratios)),
        evidence={
            "widths": [1e6, 2e6],
            "cosine": far,
            "claimed_bound_with_C_and_xi_of_1000": bound,
            "cosine_by_ratio": {
                f"{ratio:g}": gaussian_overlap(1.0, ratio) ** dimension for ratio in ratios
            },
        },
    )


def check_cutoff_scale(material: Material, generator: Generator) -> Finding:
    """A head that looks far away sees nearer tokens when its temperature rises."""
    distance = (torch.arange(401, dtype=torch.float64) - 200).abs()
    far = [float(((0.1 * distance / tau).softmax(-1) * distance).sum()) for tau in (0.5, 4.0)]
    errors = []
    for tau in (0.5, 1.0, 2.0, 4.0):
        near = (-(distance**2) / 18 / tau).softmax(-1)  # s = 3
        errors.append(abs(float((near * distance**2).sum()) / (9 * tau) - 1))
    return Finding(
        stated=Measured(worst=far[0] - far[1]),
        corrected=Measured(worst=max(errors), allowed=1e-6, cases=len(errors)),
        evidence={"mean_distance_at_temperatures_0.5_and_4": far},
    )
