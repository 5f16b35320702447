"""J. Aranda, "Natural Attention: Theoretical Foundations" (2024): what a pattern tells about its
input, and its entropy."""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor

from engine.claims.claim import Finding, Material, Measured
from engine.claims.matrices import random_attention, softmax_matrix
from engine.diagnostics.rows import entropy_of_probabilities

_TOKENS, _WIDTH = 12, 8
"""The size of the random inputs whose patterns are compared."""


def check_information(material: Material, generator: Generator) -> Finding:
    """X is uniform on matrices with different patterns, so the pattern identifies the matrix."""
    patterns, information = _distinct_patterns(generator)
    length = patterns.shape[-1]
    sampled = _sampled_key_information(patterns)
    return Finding(
        stated=Measured(worst=information - math.log(length)),
        corrected=Measured(worst=sampled - math.log(length)),
        evidence={
            "inputs": len(patterns),
            "length": length,
            "information_nats": information,
            "log_length": math.log(length),
            "information_of_a_sampled_key": sampled,
        },
    )


def _distinct_patterns(generator: Generator) -> tuple[Tensor, float]:
    """Patterns [50, N, N] of equally likely inputs, and the mutual information between the two.

    A pattern is a function of its input, so the information is the entropy of the patterns. That
    is the logarithm of their number, because no two are equal.
    """
    patterns = torch.stack([random_attention(generator, _TOKENS, _WIDTH) for _ in range(50)])
    apart = torch.pdist(patterns.flatten(1)).min()
    assert apart > 1e-3, "two inputs have the same pattern"
    return patterns, math.log(len(patterns))


def _regularised_patterns(generator: Generator, weight: float) -> tuple[Tensor, float]:
    """Patterns that minimise |A - T|_F^2 + weight |A|_F^2, T another pattern for each input.

    With rows that sum to one the minimum is (T + weight / L) / (1 + weight): a mixture of T and
    the uniform pattern, so different targets still give different patterns.
    """
    targets, information = _distinct_patterns(generator)
    patterns = (targets + weight / targets.shape[-1]) / (1 + weight)
    slope = 2 * (patterns - targets) + 2 * weight * patterns
    assert torch.allclose(slope, slope.mean(-1, keepdim=True)), "at the optimum of the simplex"
    return patterns, information


def _sampled_key_information(patterns: Tensor) -> float:
    """I(input and row; key drawn from that row), in nats."""
    rows = patterns.flatten(0, -2)
    average = entropy_of_probabilities(rows.mean(0, keepdim=True))
    return float(average - entropy_of_probabilities(rows).mean())


def check_frobenius_information(material: Material, generator: Generator) -> Finding:
    weight = 10.0
    patterns, information = _regularised_patterns(generator, weight)
    frobenius = float(patterns.square().sum((-1, -2)).mean())
    sampled = _sampled_key_information(patterns)
    return Finding(
        stated=Measured(worst=information - frobenius / (2 * weight)),
        corrected=Measured(worst=sampled - math.log(frobenius)),
        evidence={
            "lambda": weight,
            "information_nats": information,
            "claimed_bound": frobenius / (2 * weight),
            "information_of_a_sampled_key": sampled,
            "log_mean_squared_norm": math.log(frobenius),
        },
    )


def check_strong_information(material: Material, generator: Generator) -> Finding:
    weight = 10.0
    patterns, information = _regularised_patterns(generator, weight)
    length = patterns.shape[-1]
    frobenius = float(patterns.square().sum((-1, -2)).mean())
    claimed = frobenius / (2 * weight) + math.log(length)
    sampled = _sampled_key_information(patterns)
    true_bound = min(math.log(length), math.log(frobenius))
    return Finding(
        stated=Measured(worst=information - claimed),
        corrected=Measured(worst=sampled - true_bound),
        evidence={
            "lambda": weight,
            "information_nats": information,
            "claimed_bound": claimed,
            "information_of_a_sampled_key": sampled,
            "true_bound": true_bound,
        },
    )


def check_entropy_bound(material: Material, generator: Generator) -> Finding:
    length = 12
    uniform = torch.full((length, length), 1 / length, dtype=torch.float64)
    total_entropy = float(entropy_of_probabilities(uniform).sum())
    claimed = float(uniform.square().sum()) / 2 + math.log(length)
    patterns = [
        random_attention(generator, 24, 8, spread)
        for spread in (0.1, 1.0, 3.0, 10.0)
        for _ in range(material.trials(5))
    ]
    patterns += [softmax_matrix(head.q, head.k) for head in material.heads]
    patterns += [uniform, torch.eye(length, dtype=torch.float64)]
    return Finding(
        stated=Measured(worst=total_entropy - claimed),
        corrected=Measured(worst=max(map(_outside_bracket, patterns)), cases=len(patterns)),
        evidence={
            "counterexample": "the uniform pattern of 12 tokens",
            "entropy": total_entropy,
            "claimed_bound": claimed,
            "document_heads": len(material.heads),
        },
    )


def _outside_bracket(pattern: Tensor) -> float:
    """How far the mean row entropy is outside [-log(|A|^2 / L), log L - (|A|^2 - 1) / (2 L)]."""
    length, squared = len(pattern), float(pattern.square().sum())
    entropy = float(entropy_of_probabilities(pattern).mean())
    low = -math.log(squared / length)
    high = math.log(length) - (squared - 1) / (2 * length)
    return max(low - entropy, entropy - high)
