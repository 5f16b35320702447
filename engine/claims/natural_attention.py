"""J. Aranda, "Natural Attention: Theoretical Foundations" (2024): scale, gradients, information."""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor

from engine.claims.claim import Claim, Finding, Material, Measured, Repair, Replacement
from engine.claims.matrices import gaussian, lln_matrix, random_attention, softmax_matrix
from engine.diagnostics.rows import entropy_of_probabilities

PAPER = "Natural Attention: Theoretical Foundations"


def _attention(x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor) -> Tensor:
    return softmax_matrix(x @ w_q, x @ w_k) @ (x @ w_v)


_TOKENS, _WIDTH = 12, 8
"""Of random inputs."""

_NUM_PARAMETERS = 6
"""Of random Fisher matrices and Hessians."""


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


def _check_conjectured_rate(material: Material, generator: Generator) -> Finding:
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


def _check_information(material: Material, generator: Generator) -> Finding:
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


def _check_frobenius_information(material: Material, generator: Generator) -> Finding:
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


def _check_strong_information(material: Material, generator: Generator) -> Finding:
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


def _check_least_eigenvalue(material: Material, generator: Generator) -> Finding:
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


def _check_lipschitz(material: Material, generator: Generator) -> Finding:
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


def _check_natural_gradient_rate(material: Material, generator: Generator) -> Finding:
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


def _check_entropy_bound(material: Material, generator: Generator) -> Finding:
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
        check=_check_conjectured_rate,
        correction=Repair(
            text="The rate holds if F is fixed and positive definite, "
            "mu F <= Hessian <= M F, and eta <= 1 / M."
        ),
    ),
    Claim(
        id="natural-attention.theorem-7",
        paper=PAPER,
        statement="I(X; A(X)) <= log L.",
        check=_check_information,
        correction=Replacement(text=f"I <= log L {_SAMPLED_KEY}not for the whole pattern.".strip()),
    ),
    Claim(
        id="natural-attention.conjecture-8",
        paper=PAPER,
        statement="If training minimises a loss + lambda |A|_F^2, I(X; A(X)) <= "
        "E|A|_F^2 / (2 lambda).",
        check=_check_frobenius_information,
        correction=Replacement(text=f"I <= log E|A|_F^2, {_SAMPLED_KEY}in place of A(X)."),
    ),
    Claim(
        id="natural-attention.lemma-10",
        paper=PAPER,
        statement="F = A A^T is positive definite, with least eigenvalue >= 1 / L.",
        check=_check_least_eigenvalue,
        correction=Replacement(text="|A^T v|^2 >= |v|^2 / L for vectors v >= 0."),
    ),
    Claim(
        id="natural-attention.lemma-11",
        paper=PAPER,
        statement="|grad(theta_1) - grad(theta_2)| in F^-1 is at most L |theta_1 - theta_2| in F, "
        "for F = A A^T.",
        check=_check_lipschitz,
        correction=Replacement(
            text="F^-1 need not exist. If F > 0 and 0 <= Hessian <= M F, the constant is M."
        ),
    ),
    Claim(
        id="natural-attention.theorem-12",
        paper=PAPER,
        statement="|theta_t - theta*|_F^2 <= (1 - eta / L)^t |theta_0 - theta*|_F^2 for F = A A^T.",
        check=_check_natural_gradient_rate,
        correction=Replacement(
            text="The rate is 1 - eta mu with mu from mu F <= Hessian <= M F and eta <= 1 / M; "
            "the sequence length does not enter."
        ),
    ),
    Claim(
        id="natural-attention.lemma-13",
        paper=PAPER,
        statement="H(A) <= |A|_F^2 / 2 + log L.",
        check=_check_entropy_bound,
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
        check=_check_strong_information,
        correction=Replacement(
            text=f"I <= min(log L, log E|A|_F^2), {_SAMPLED_KEY}in place of A(X)."
        ),
    ),
)
