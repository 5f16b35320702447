"""All singular values of a matrix, computed with pauses, against LAPACK's single call."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.analysis.diagnosis_plan import matrix_bytes, plan_diagnosis
from engine.diagnostics import Effort, HeadView, measure
from engine.diagnostics.singular_values import (
    MAX_SINGLE_CALL,
    bidiagonal,
    bidiagonal_values,
    singular_values,
)
from engine.model.embedding_model import EmbeddingModel
from engine.steps import advance, finish
from engine.types import Attention
from tests.engine.dense import KINDS, dense, make_view, read

pytestmark = pytest.mark.usefixtures("one_thread")

ROUNDING = 1e-13


def matrix_of(kind: str, size: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(size)
    sharp = (9 * torch.randn(size, size, generator=generator, dtype=torch.float64)).softmax(-1)
    match kind:
        case "sharp rows":
            return sharp
        case "low rank":
            return sharp[:, :3] @ sharp[:3]
        case "all rows alike":
            return sharp[:1].expand(size, size).clone()
        case "shift":
            return torch.eye(size, dtype=torch.float64).roll(1, 0)
        case "zero":
            return torch.zeros(size, size, dtype=torch.float64)
        case _:
            return torch.eye(size, dtype=torch.float64)


@pytest.mark.parametrize("size", [1, 2, 3, 31, 32, 33, 130])
@pytest.mark.parametrize(
    "kind", ["sharp rows", "low rank", "all rows alike", "shift", "zero", "identity"]
)
def test_two_diagonals_have_the_matrix_singular_values(kind: str, size: int) -> None:
    matrix = matrix_of(kind, size)
    expected = torch.linalg.svdvals(matrix).numpy()
    found = finish(bidiagonal_values(*finish(bidiagonal(matrix.clone()))))
    np.testing.assert_allclose(found, expected, atol=ROUNDING * max(1.0, expected[0]))


def test_a_large_matrix_is_read_in_many_steps() -> None:
    size = MAX_SINGLE_CALL + 5
    matrix = matrix_of("sharp rows", size)
    expected = torch.linalg.svdvals(matrix)
    steps, num_steps = singular_values(matrix), 1
    while (answer := advance(steps)) is None:
        num_steps += 1
    torch.testing.assert_close(answer.value, expected, atol=ROUNDING, rtol=0)
    assert num_steps > size / 32


@pytest.mark.parametrize("kind", KINDS)
def test_in_mode_exact_the_rank_of_a_longer_text_is_exact(kind: Attention) -> None:
    view = make_view(kind, 150, sinks=(1, 1))
    exact = read(view, "effective_rank", Effort(mode="exact"))
    values = torch.linalg.svdvals(dense(view))
    squares = values.square()
    shares = values / values.sum(1, keepdim=True)
    truths = {
        "singular_values": values[:, :8],
        "stable_rank": squares.sum(1) / squares[:, 0],
        "entropy_rank": torch.special.entr(shares).sum(1).exp(),
    }
    assert exact.error is None
    rank = squares.sum(1).square() / squares.square().sum(1)
    np.testing.assert_allclose(exact.values, rank.numpy(), rtol=1e-10)
    for name, truth in truths.items():
        assert exact.beside[name].error is None
        np.testing.assert_allclose(exact.beside[name].values, truth.numpy(), rtol=1e-9)


def test_beyond_its_limit_the_rank_is_an_estimate_that_says_so() -> None:
    view = make_view("lln_diag", 150)
    found = read(view, "effective_rank", Effort(mode="exact", max_spectrum_tokens=149))
    assert found.error is not None
    assert "random" in found.method


def test_repeated_tokens_have_one_singular_value() -> None:
    one = make_view("softmax", 1)
    view = HeadView(q=one.q.repeat(140, 1, 1), k=one.k.repeat(140, 1, 1), attention="softmax")
    found = measure(view, ["effective_rank"], Effort(mode="exact"))["effective_rank"]
    np.testing.assert_allclose(found.values, 1, rtol=1e-12)
    np.testing.assert_allclose(found.beside["singular_values"].values[:, 1:], 0, atol=1e-12)


def test_the_matrices_count_towards_the_memory_of_a_diagnosis(
    default_model: EmbeddingModel,
) -> None:
    exact, auto = (
        plan_diagnosis(default_model, None, None, ["effective_rank"], mode)
        for mode in ("exact", "auto")
    )
    assert matrix_bytes(exact, 4_096) == 4 * 4_096**2 * 8
    assert matrix_bytes(exact, 4_097) == matrix_bytes(auto, 4_096) == 0
    other = plan_diagnosis(default_model, None, None, ["entropy"], "exact")
    assert matrix_bytes(other, 4_096) == 0
    # Of shorter texts, instruments share the matrices of a group of heads.
    assert matrix_bytes(other, 2_048) >= 2_048**2 * 8
