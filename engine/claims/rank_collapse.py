"""Z. Xie, "Attention" (2021), after Dong et al.: path decomposition and the loss of rank."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import torch
from torch import Generator, Tensor

from engine.claims.claim import Claim, Finding, Material, Measured, Repair, Replacement
from engine.claims.matrices import centred, gaussian, softmax_matrix

PAPER = "Attention: Bound of the Losing Rank Rate"
LARGEST_SPREAD = 1.256
"""The largest D with e^D <= 1 + 2 D, which the bounds by D need."""


def _check_paths(material: Material, generator: Generator) -> Finding:
    """Compares three layers of two heads, with biases, to the sum over all eight paths."""
    length, dim, layers, heads = 6, 4, 3, 2
    x = gaussian(generator, length, dim)
    weights = [[gaussian(generator, dim, dim) / 2 for _ in range(heads)] for _ in range(layers)]
    patterns, output = _forward(x, weights, gaussian(generator, layers, dim))
    right, printed = torch.zeros_like(x), torch.zeros_like(x)
    for path in product(range(heads), repeat=layers):
        p = [patterns[layer][head] for layer, head in enumerate(path)]
        w = [weights[layer][head] for layer, head in enumerate(path)]
        right += p[2] @ p[1] @ p[0] @ x @ w[0] @ w[1] @ w[2]
        printed += p[0] @ p[1] @ p[2] @ x @ w[0] @ w[1] @ w[2]
    printed_error = float(centred(output - printed).abs().max())
    error = float(centred(output - right).abs().max())  # up to e b', a vector equal in all rows
    return Finding(
        stated=Measured(worst=printed_error, cases=heads**layers),
        corrected=Measured(worst=error, cases=heads**layers),
        evidence={"error": error, "error_in_the_printed_order": printed_error},
    )


def _forward(
    x: Tensor, weights: Sequence[Sequence[Tensor]], biases: Tensor
) -> tuple[list[list[Tensor]], Tensor]:
    patterns = []
    for heads, bias in zip(weights, biases, strict=True):
        layer = [softmax_matrix(x @ w, x) for w in heads]
        patterns.append(layer)
        x = torch.stack([p @ x @ w for p, w in zip(layer, heads, strict=True)]).sum(0) + bias
    return patterns, x


def _composite_norm(matrix: Tensor) -> float:
    magnitude = matrix.abs()
    return math.sqrt(float(magnitude.sum(0).max()) * float(magnitude.sum(1).max()))


def _check_norm(material: Material, generator: Generator) -> Finding:
    row = torch.zeros(4, 4, dtype=torch.float64)
    row[0] = 1
    sum_of_norms = _composite_norm(row) + _composite_norm(row.mT)
    norm_of_sum = _composite_norm(row + row.mT)
    excess = []
    for _ in range(material.trials(200)):
        one, other = gaussian(generator, 5, 5), gaussian(generator, 5, 5)
        excess.append(_composite_norm(one @ other) - _composite_norm(one) * _composite_norm(other))
        excess.append(float(torch.linalg.matrix_norm(one, 2)) - _composite_norm(one))
    return Finding(
        stated=Measured(worst=norm_of_sum - sum_of_norms),
        corrected=Measured(worst=max(excess), cases=len(excess)),
        evidence={
            "A": row.tolist(),
            "B": row.mT.tolist(),
            "norm_of_A_plus_B": norm_of_sum,
            "norm_of_A_plus_norm_of_B": sum_of_norms,
        },
    )


def _check_residual(material: Material, generator: Generator) -> Finding:
    """No row is nearer than the mean row, in the Frobenius norm and in the spectral norm."""
    excess = []
    for _ in range(material.trials(200)):
        matrix = gaussian(generator, 7, 4)
        residual = centred(matrix)
        other = residual - gaussian(generator, 1, 4) * 0.3
        excess += [
            float(torch.linalg.matrix_norm(residual, order))
            - float(torch.linalg.matrix_norm(other, order))
            for order in ("fro", 2)
        ]
    return Finding(
        stated=Measured(worst=max(excess), cases=len(excess)),
        evidence={"least_gain_of_the_mean": -max(excess)},
    )


def _attend(x: Tensor, w_qk: Tensor, w_v: Tensor) -> Tensor:
    return softmax_matrix(x @ w_qk, x) @ x @ w_v


def _beta(w_qk: Tensor, w_v: Tensor) -> float:
    """The least beta that the theorem's condition |W_QK|_1 |W_V|_{1,inf} <= beta allows."""
    return float(w_qk.abs().sum(0).max()) * _composite_norm(w_v)


def _check_rate_bound(material: Material, generator: Generator) -> Finding:
    worst, trials = 0.0, material.trials(600)
    for trial in range(trials):
        spread, length, dim = 10 ** (2 * trial / trials - 1), 2 + trial % 5, 1 + trial % 4
        x = spread * gaussian(generator, length, dim)
        w_qk, w_v = gaussian(generator, dim, dim), gaussian(generator, dim, dim)
        before = _composite_norm(centred(x))
        after = _composite_norm(centred(_attend(x, w_qk, w_v)))
        bound = 4 * _beta(w_qk, w_v) / math.sqrt(dim) * before**3
        worst = max(worst, after / bound)
    return Finding(
        stated=Measured(worst=worst - 1, cases=trials),
        evidence={
            "largest_ratio_found": worst,
        },
    )


def _check_limit(material: Material, generator: Generator) -> Finding:
    """Compares orthogonal tokens that attend to themselves with tokens that are close together."""
    eye = torch.eye(8, dtype=torch.float64)
    x, layers = eye, 50
    for _ in range(layers):
        x = _attend(x, 40 * eye, eye)
    kept = _composite_norm(centred(x)) / _composite_norm(centred(eye))
    shrunk, conditions = [], []
    for _ in range(material.trials(50)):
        small = 0.05 * gaussian(generator, 6, 4)
        w_qk, w_v = gaussian(generator, 4, 4) / 4, gaussian(generator, 4, 4) / 4
        before = _composite_norm(centred(small))
        conditions.append(4 * _beta(w_qk, w_v) * before**2 / 2)
        deep = small
        for _ in range(3):
            deep = _attend(deep, w_qk, w_v)
        shrunk.append(_composite_norm(centred(deep)) / before - conditions[-1] ** 13)
    assert max(conditions) < 1, "the trials meet the condition"
    return Finding(
        stated=Measured(worst=kept, allowed=0.5),
        corrected=Measured(worst=max(shrunk), cases=len(shrunk)),
        evidence={
            "share_of_the_residual_kept_after_50_layers": kept,
            "scale_of_W_QK": 40,
            "largest_4_beta_res2_over_sqrt_d_of_the_trials": max(conditions),
        },
    )


def _check_one_sided_bound(material: Material, generator: Generator) -> Finding:
    stated, corrected = -math.inf, -math.inf
    trials = material.trials(100)
    for _ in range(trials):
        residual = gaussian(generator, 6, 3)
        energies = gaussian(generator, 6, 6)
        energies *= LARGEST_SPREAD / float(_row_spread(energies).max())
        base = gaussian(generator, 6)
        share = base.softmax(-1)  # p
        exact = (base + energies).softmax(-1) @ residual
        spread = _row_spread(energies).unsqueeze(-1)
        stated = max(stated, float((exact - (1 + 2 * spread) * (share @ residual)).max()))
        distance = (exact - share @ residual).abs()
        corrected = max(corrected, float((distance - 2 * spread * (share @ residual.abs())).max()))
    return Finding(
        stated=Measured(worst=stated, cases=trials),
        corrected=Measured(worst=corrected, cases=trials),
        evidence={"largest_excess_of_equation_9": stated, "largest_D": LARGEST_SPREAD},
    )


def _row_spread(energies: Tensor) -> Tensor:
    """D_ii: the largest difference within a row."""
    return energies.amax(-1) - energies.amin(-1)


def _check_low_rank(material: Material, generator: Generator) -> Finding:
    """Takes a uniform pattern and a vector of mean zero: P w = 0, but its projection is not 0."""
    length, tolerance = 1024, 0.5
    rank = math.ceil(4 * math.log(400 * length) / (tolerance**2 - tolerance**3))
    weights = gaussian(generator, length)
    weights -= weights.mean()
    uniform = torch.full((length, length), 1 / length, dtype=torch.float64)
    pattern = softmax_matrix(gaussian(generator, length, 16), gaussian(generator, length, 16))
    relative, coordinate = [], []
    for _ in range(material.trials(6)):
        projection = gaussian(generator, rank, length) / math.sqrt(rank)
        moved = projection.mT @ (projection @ weights) - weights
        relative.append(float((uniform @ moved).norm() - tolerance * (uniform @ weights).norm()))
        allowed = tolerance * pattern.norm(dim=-1) * weights.norm()
        coordinate.append(float(((pattern @ moved).abs() / allowed).max()))
    return Finding(
        stated=Measured(worst=max(relative), cases=len(relative)),
        corrected=Measured(worst=max(coordinate) - 1, cases=len(coordinate)),
        evidence={
            "length": length,
            "rank": rank,
            "epsilon": tolerance,
            "counterexample": "P uniform, w of mean zero: |P w| = 0",
            "error_there": max(relative),
            "largest_share_of_the_coordinate_bound": max(coordinate),
        },
    )


def _check_low_rank_as_reason(material: Material, generator: Generator) -> Finding:
    """Takes a pattern of low rank that keeps the residual: two groups that see themselves only."""
    group = torch.arange(8) // 4
    low = (60.0 * (group[:, None] == group).double()).softmax(-1)
    x = gaussian(generator, 8, 3)
    kept = _residual_share(low, x, layers=50)
    full = torch.full((8, 8), 0.05, dtype=torch.float64) + 0.6 * torch.eye(8, dtype=torch.float64)
    lost = _residual_share(full, x, layers=50)
    excess = []
    for _ in range(material.trials(50)):
        pattern = softmax_matrix(gaussian(generator, 8, 4), gaussian(generator, 8, 4))
        contraction = torch.cdist(pattern, pattern, p=1).max() / 2
        excess.append(float((_span(pattern @ x) - contraction * _span(x)).max()))
    return Finding(
        stated=Measured(worst=max(kept, 1 - lost), allowed=0.1, cases=2),
        corrected=Measured(worst=max(excess), cases=len(excess)),
        evidence={
            "numerical_rank_of_the_pattern_that_keeps": int(torch.linalg.matrix_rank(low)),
            "share_of_the_residual_that_it_keeps": kept,
            "numerical_rank_of_the_pattern_that_loses": int(torch.linalg.matrix_rank(full)),
            "share_of_the_residual_that_it_leaves": lost,
        },
    )


def _residual_share(pattern: Tensor, x: Tensor, *, layers: int) -> float:
    moved = torch.linalg.matrix_power(pattern, layers) @ x
    return float(centred(moved).norm() / centred(x).norm())


def _span(x: Tensor) -> Tensor:
    """The largest difference between two rows, column by column."""
    return x.amax(0) - x.amin(0)


CLAIMS = (
    Claim(
        id="rank-collapse.theorem-2.1",
        paper=PAPER,
        statement="A stack of attention layers is the sum over paths of "
        "P_path X W_path + e b', both products in the same order.",
        check=_check_paths,
        correction=Repair(
            text="SAN(X) = sum over paths of P_hL ... P_h1 X W_h1 ... W_hL + e b', with the "
            "patterns of the forward pass itself and no MLP or norm between layers."
        ),
    ),
    Claim(
        id="rank-collapse.definition-2.1-norm",
        paper=PAPER,
        statement="|X|_{1,inf} = sqrt(|X|_1 |X|_inf) is a norm.",
        check=_check_norm,
        correction=Replacement(
            text="It breaks the triangle inequality; it is submultiplicative and at least the "
            "spectral norm."
        ),
    ),
    Claim(
        id="rank-collapse.definition-2.1-residual",
        paper=PAPER,
        statement="res(X) = X - 1 x' with the x nearest to X, which is the mean row.",
        check=_check_residual,
    ),
    Claim(
        id="rank-collapse.theorem-2.2",
        paper=PAPER,
        statement="|res SAN(X)| <= (4 beta / sqrt(d))^((3^L - 1) / 2) |res X|^(3^L), "
        "tested at L = 1.",
        check=_check_rate_bound,
        is_unproved=True,
        remark="Not refuted, and not proved: the printed proof rests on a norm that is none and on "
        "equation 9, which fails.",
    ),
    Claim(
        id="rank-collapse.theorem-2.2-limit",
        paper=PAPER,
        statement="Hence the residual vanishes as the number of layers grows.",
        check=_check_limit,
        correction=Repair(
            text="It does where 4 beta |res X|^2 / sqrt(d) < 1; other inputs may keep it for ever."
        ),
    ),
    Claim(
        id="rank-collapse.equation-9",
        paper=PAPER,
        statement="P R <= (I + 2 D) 1 p^T R, entry by entry, with p = softmax(r).",
        check=_check_one_sided_bound,
        correction=Replacement(text="|P R - 1 p^T R| <= 2 D 1 p^T |R| for D <= 1.256."),
    ),
    Claim(
        id="rank-collapse.theorem-2.3",
        paper=PAPER,
        statement="For P~ = P R' R of rank Theta(log n), |P~ w - P w| <= eps |P w| with "
        "probability 1 - o(1).",
        check=_check_low_rank,
        correction=Replacement(
            text="|P~ w - P w|_i <= eps |P_i| |w| for every row i, with rank O(log n / eps^2)."
        ),
    ),
    Claim(
        id="rank-collapse.section-2.3-remark",
        paper=PAPER,
        statement="The low rank of softmax patterns is the reason why layers lose rank.",
        check=_check_low_rank_as_reason,
        correction=Replacement(
            text="A pattern of rank 2 may keep the residual and one of full rank lose it. What "
            "shrinks differences is t(P), half the largest L1 distance between two rows: "
            "the span of P X is at most t(P) times that of X."
        ),
    ),
)
