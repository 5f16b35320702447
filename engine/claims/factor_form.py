"""The factor form P = pi kappa of LLN attention, on which this project's instruments rest."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Generator, Tensor

from engine.claims.claim import Claim, Finding, Material, Measured
from engine.claims.matrices import attention_matrix, gaussian, second_modulus
from engine.diagnostics import HeadView
from engine.diagnostics.linear_algebra import eigenvalues
from engine.diagnostics.lln_diag import lln_factors
from engine.diagnostics.rows import entropy_of_probabilities
from kernels.attention import LLNState, lln_state, merge_states
from kernels.attention.reference import lln_matrix

PAPER = "Factor form of LLN attention"


_TOKENS, _HEAD_SIZE = 200, 16
"""The size of the random heads."""

_BLOCK_SIZE = 16
"""LLN+Diag's block size."""


class Head:
    """One LLN head: its factors, and its matrix by the definition, not by the factors."""

    def __init__(self, q: Tensor, k: Tensor) -> None:
        one = torch.ones(1, dtype=torch.float64)
        q, k = q.unsqueeze(1), k.unsqueeze(1)
        factors = lln_factors(HeadView(q=q, k=k, attention="lln", alpha=one, beta=one))
        self.pi, self.kappa = factors.pi[0], factors.kappa[0]
        self.matrix = lln_matrix(q, k)[0]
        self.chain = self.kappa @ self.pi
        self.size = len(self.chain)


def _heads(material: Material, generator: Generator) -> list[Head]:
    """Random heads, and those of the document with centred keys."""

    def rows() -> Tensor:
        return gaussian(generator, _TOKENS, _HEAD_SIZE)

    random = [Head(spread * rows(), spread * rows()) for spread in (0.3, 1.0, 3.0)]
    return random + [Head(head.q, head.k - head.k.mean(0)) for head in material.heads]


def _each(error: Callable[[Head], float]) -> Callable[[Material, Generator], Finding]:
    """A check of every head; `error` says how far from true the statement is on one head."""

    def check(material: Material, generator: Generator) -> Finding:
        errors = [error(head) for head in _heads(material, generator)]
        return Finding(
            stated=Measured(worst=max(errors), cases=len(errors)),
            evidence={"largest_excess": max(errors), "document_heads": len(material.heads)},
        )

    return check


def _factor_error(head: Head) -> float:
    rows = (head.pi.sum(1) - 1).abs().max() + (head.kappa.sum(1) - 1).abs().max()
    return float((head.matrix - head.pi @ head.kappa).abs().max() + rows)


def _spectrum_error(head: Head) -> float:
    """Compares power sums tr(P^n): no eigenvalues need to be matched one to one."""
    errors, power, small = [], head.matrix, head.chain
    for _ in range(4):
        errors.append(float((power.trace() - small.trace()).abs()))
        power, small = power @ head.matrix, small @ head.chain
    moduli = abs(float(second_modulus(head.matrix) - second_modulus(head.chain)))
    return max(*errors, moduli if moduli > 1e-7 else 0.0)


def _stationary_error(head: Head) -> float:
    balance = torch.cat([head.chain.mT - torch.eye(head.size), torch.ones(1, head.size)])
    wanted = torch.zeros(head.size + 1, 1, dtype=torch.float64)
    wanted[-1] = 1
    law = torch.linalg.lstsq(balance, wanted).solution.squeeze(1) @ head.kappa
    return float((law @ head.matrix - law).abs().max() + (law.sum() - 1).abs())


def _singular_error(head: Head) -> float:
    left, right = torch.linalg.qr(head.pi).R, torch.linalg.qr(head.kappa.mT).R
    small = torch.linalg.svdvals(left @ right.mT)
    return float((torch.linalg.svdvals(head.matrix)[: head.size] - small).abs().max())


def _frobenius_error(head: Head) -> float:
    gram = ((head.pi.mT @ head.pi) * (head.kappa @ head.kappa.mT)).sum()
    return abs(float(gram / head.matrix.square().sum()) - 1)


def _collision_error(head: Head) -> float:
    overlap = head.kappa @ head.kappa.mT
    rows = ((head.pi @ overlap) * head.pi).sum(1)
    return float((rows - head.matrix.square().sum(1)).abs().max())


def _outside_entropy_bracket(head: Head) -> float:
    exact = entropy_of_probabilities(head.matrix)
    low = head.pi @ entropy_of_probabilities(head.kappa)
    width = entropy_of_probabilities(head.pi)
    outside = torch.maximum(low - exact, exact - low - width).max()
    return float(torch.maximum(outside, (width - math.log(head.size)).max()))


def _information_excess(head: Head) -> float:
    """I(query; key) <= I(query; channel) <= log D."""
    by_key, by_channel = (_information(joint) for joint in (head.matrix, head.pi))
    return max(by_key - by_channel, by_channel - math.log(head.size))


def _information(rows: Tensor) -> float:
    mean = entropy_of_probabilities(rows.mean(0, keepdim=True))[0]
    return float(mean - entropy_of_probabilities(rows).mean())


def _rectangle_error(head: Head) -> float:
    rows = torch.nn.functional.pad(head.pi.cumsum(0), (0, 0, 1, 0))
    columns = torch.nn.functional.pad(head.kappa.cumsum(1), (1, 0))
    top, bottom, left, right = 17, 90, 3, 150
    mass = (rows[bottom] - rows[top]) @ (columns[:, right] - columns[:, left])
    return abs(float(mass - head.matrix[top:bottom, left:right].sum()))


def _distance_error(head: Head) -> float:
    """m_c(i) = sum_j kappa_cj |i - j| by two cumulative sums."""
    position = torch.arange(len(head.pi), dtype=torch.float64)
    mass, moment = head.kappa.cumsum(1), (head.kappa * position).cumsum(1)
    total = moment[:, -1:]
    distances = position * mass - moment + (total - moment) - position * (1 - mass)  # [D, N]
    found = (head.pi * distances.mT).sum(1)
    exact = (head.matrix * (position[:, None] - position).abs()).sum(1)
    return float(((found - exact) / len(position)).abs().max())


def _check_merging(material: Material, generator: Generator) -> Finding:
    """Merges the states of three pieces in both orders and compares with the state of the whole."""
    k, v = (gaussian(generator, 90, 2, _HEAD_SIZE) for _ in range(2))
    beta = 3.0
    pieces = [lln_state(k[at], v[at], beta=beta) for at in _cuts(len(k), 31, 32)]
    whole = lln_state(k, v, beta=beta)
    left = merge_states(merge_states(pieces[0], pieces[1]), pieces[2])
    right = merge_states(pieces[0], merge_states(pieces[1], pieces[2]))
    error = max(_state_distance(merged, whole) for merged in (left, right))
    return Finding(stated=Measured(worst=error, cases=2), evidence={"error": error})


def _cuts(length: int, *at: int) -> list[slice]:
    bounds = [0, *at, length]
    return [slice(start, end) for start, end in pairwise(bounds)]


def _state_distance(one: LLNState, other: LLNState) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True))


def _mixed(generator: Generator, length: int, dim: int) -> tuple[Tensor, ...]:
    """LLN+Diag with equal shares and its two parts: P, L, B."""
    one = torch.ones(1, dtype=torch.float64)
    view = HeadView(
        q=gaussian(generator, length, 1, dim),
        k=gaussian(generator, length, 1, dim),
        attention="lln_diag",
        alpha=one,
        beta=one,
        mix=one / 2,
        block_size=_BLOCK_SIZE,
    )
    parts = (view, replace(view, attention="lln"), replace(view, attention="block_diagonal"))
    return tuple(attention_matrix(part)[0] for part in parts)


def _check_half_eigenvalue(material: Material, generator: Generator) -> Finding:
    """N > b D: 1/2 is an eigenvalue with multiplicity at least N / b - D."""
    length, dim = 160, 4
    mixed, _, diagonal = _mixed(generator, length, dim)
    least = length // _BLOCK_SIZE - dim
    spectrum = eigenvalues(mixed)
    multiplicity = int(((spectrum - 0.5).abs() < 1e-6).sum())
    gap = 1 - float(second_modulus(mixed))
    diagonal_gap = 1 - float(second_modulus(diagonal))
    return Finding(
        stated=Measured(worst=max(least - multiplicity, gap - 0.5, abs(diagonal_gap))),
        evidence={
            "multiplicity": multiplicity,
            "at_least": least,
            "gap": gap,
            "gap_of_the_blocks_alone": diagonal_gap,
        },
    )


def _check_mixed_entropy(material: Material, generator: Generator) -> Finding:
    """H(P_i) = (log 2 + H(L_i)) / 2 + sum over the block of l log l - p log p, l = L / 2."""
    mixed, lln, diagonal = _mixed(generator, 120, 8)
    half = lln / 2
    inside = diagonal > 0
    both = torch.where(inside, half.log() * half - mixed.log() * mixed, 0.0)
    formula = (math.log(2) + entropy_of_probabilities(lln)) / 2 + both.sum(1)
    error = float((formula - entropy_of_probabilities(mixed)).abs().max())
    return Finding(stated=Measured(worst=error), evidence={"error": error})


def _claim(name: str, statement: str, check: Callable[[Material, Generator], Finding]) -> Claim:
    return Claim(id=f"factor-form.{name}", paper=PAPER, statement=statement, check=check)


CLAIMS = (
    _claim(
        "factors",
        "P = pi kappa, both row-stochastic: a head is a mixture of D topics.",
        _each(_factor_error),
    ),
    _claim(
        "spectrum",
        "The non-zero spectrum of P is that of the D x D chain kappa pi.",
        _each(_spectrum_error),
    ),
    _claim(
        "stationary-law",
        "The stationary law of P is stat(kappa pi) kappa.",
        _each(_stationary_error),
    ),
    _claim(
        "singular-values",
        "The singular values of P are those of R_1 R_2^T, from QR of pi and of kappa^T.",
        _each(_singular_error),
    ),
    _claim(
        "frobenius-norm",
        "|P|_F^2 = <pi^T pi, kappa kappa^T>.",
        _each(_frobenius_error),
    ),
    _claim(
        "row-collision",
        "|P_i|^2 = pi_i (kappa kappa^T) pi_i^T.",
        _each(_collision_error),
    ),
    _claim(
        "entropy-bracket",
        "sum_c pi_ic H(kappa_c) <= H(P_i) <= the same + H(pi_i), at most log D wide.",
        _each(_outside_entropy_bracket),
    ),
    _claim(
        "information",
        "I(query; key) <= I(query; channel) <= log D.",
        _each(_information_excess),
    ),
    _claim(
        "rectangles",
        "The mass of a rectangle of P is a product of prefix differences of pi and kappa.",
        _each(_rectangle_error),
    ),
    _claim(
        "mean-distance",
        "E|i - j| of every row follows from two cumulative sums.",
        _each(_distance_error),
    ),
    _claim(
        "merging",
        "States of pieces of a sequence merge to the state of the whole, in any order.",
        _check_merging,
    ),
    _claim(
        "half-eigenvalue",
        "LLN+Diag with equal shares has eigenvalue 1/2 at least N / b - D times, so its gap is "
        "at most 1/2; blocks alone have gap 0.",
        _check_half_eigenvalue,
    ),
    _claim(
        "mixed-entropy",
        "H(P_i) = (log 2 + H(L_i)) / 2 + sum over the block of [l log l - p log p], l = L / 2.",
        _check_mixed_entropy,
    ),
)
