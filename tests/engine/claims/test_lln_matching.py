"""Matching LLN to softmax: each mode does what it says, head by head."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from engine.claims.lln_matching import (
    MATCHINGS,
    REFITTED,
    HeadMatch,
    entropy_matched,
    fit_line,
    line_of,
    paper,
    refitted,
)
from engine.claims.matrices import lln_matrix, mean_row_entropy, softmax_matrix
from engine.diagnostics import HeadView, measure
from kernels.attention import paper_moment_matching


def heads(*variances: float, tokens: int = 300, dim: int = 32) -> tuple[Tensor, Tensor]:
    """One Gaussian head for each variance of scores: [tokens, heads, dim]."""
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, tokens, len(variances), dim, dtype=torch.float64, generator=generator)
    scale = torch.tensor(variances).double().pow(0.25)[:, None]
    return scale * q, scale * k


def lln_entropies(q: Tensor, k: Tensor, match: HeadMatch) -> list[float]:
    scales = zip(match.alpha.tolist(), match.beta.tolist(), strict=True)
    return [
        float(mean_row_entropy(lln_matrix(q[:, head], k[:, head], alpha, beta)))
        for head, (alpha, beta) in enumerate(scales)
    ]


@pytest.mark.parametrize("name", MATCHINGS)
def test_one_number_a_head(name: str) -> None:
    q, k = heads(0.5, 2.0, 4.0)
    match = MATCHINGS[name](q, 3 * k)
    assert match.alpha.shape == match.beta.shape == (3,)
    assert bool((match.alpha > 0).all())
    spread_q, spread_k = (
        q.transpose(0, 1).flatten(1).std(1),
        3 * k.transpose(0, 1).flatten(1).std(1),
    )
    torch.testing.assert_close(match.alpha * spread_q, match.beta * spread_k)


def test_paper_is_the_published_formula_head_by_head() -> None:
    q, k = heads(0.5, 2.0)
    found = paper(q, k)
    for head in range(2):
        wanted = paper_moment_matching(q[:, head], k[:, head])
        assert (float(found.alpha[head]), float(found.beta[head])) == pytest.approx(
            (float(wanted.alpha), float(wanted.beta))
        )


def test_entropy_is_matched() -> None:
    q, k = heads(0.5, 2.0, 4.0)
    wanted = [float(mean_row_entropy(softmax_matrix(q[:, head], k[:, head]))) for head in range(3)]
    assert lln_entropies(q, k, entropy_matched(q, k)) == pytest.approx(wanted, abs=1e-4)
    published = lln_entropies(q, k, paper(q, k))
    assert max(abs(a - b) for a, b in zip(published, wanted, strict=True)) > 0.5


def test_refitted_sees_only_what_varies_within_rows() -> None:
    """Moving all keys together changes neither softmax nor the variance of its scores."""
    q, k = heads(1.0, 3.0)
    moved = k + 5.0
    unmoved, found = (refitted(q, keys) for keys in (k, moved))
    torch.testing.assert_close(found.alpha, unmoved.alpha)


def test_refitted_constants_are_measured() -> None:
    """A smaller sample than the one they came from, so only nearly the same."""
    slope, offset = fit_line(32, num_tokens=384, num_samples=2)
    assert slope == pytest.approx(REFITTED[32].slope, rel=0.15)
    assert offset == pytest.approx(REFITTED[32].offset, abs=0.25)


def test_constants_between_and_beyond_fitted_sizes() -> None:
    assert line_of(64) == REFITTED[64]
    assert line_of(8) == REFITTED[16]
    assert line_of(512) == REFITTED[256]
    assert REFITTED[64].slope > line_of(96).slope > REFITTED[128].slope


@pytest.mark.parametrize("name", ["refitted", "entropy_matched"])
def test_degenerate_heads_stay_finite(name: str) -> None:
    """One token, and tokens all alike, have no spread to match. The published formula, which
    divides by it, says nothing of them."""
    for rows in (torch.zeros(1, 1, 16), torch.ones(20, 1, 16), torch.full((3, 1, 16), 1e-3)):
        match = MATCHINGS[name](rows, rows)
        assert bool(match.alpha.isfinite().all()), rows.shape
        assert bool(match.beta.isfinite().all()), rows.shape


def test_a_head_sharper_than_lln_can_be_gets_the_end_of_the_range() -> None:
    q, k = heads(400.0, tokens=60, dim=16)
    view = HeadView(q=q, k=k, attention="softmax")
    wanted = float(measure(view, ["entropy"])["entropy"].values[0])
    assert wanted < 0.3
    match = entropy_matched(q, k)
    feature_variance = float(2 * (match.alpha[0] * q.std()) ** 2)
    assert feature_variance <= 64.1
    assert math.isfinite(lln_entropies(q, k, match)[0])
