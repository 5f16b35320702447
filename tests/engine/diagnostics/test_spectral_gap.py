"""The spectral gap, found by iteration, against the eigenvalues of the dense matrix."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from engine.diagnostics import Effort, HeadView
from engine.diagnostics.head_group import HeadGroup
from engine.diagnostics.linear_algebra import BlockArnoldi
from engine.steps import Steps, finish
from engine.types import Attention
from tests.engine.dense import HEAD_SIZE, KINDS, NUM_HEADS, Floats, dense, make_view, read

pytestmark = pytest.mark.usefixtures("one_thread")

_SMALL_MIX = torch.tensor([0.05, 0.1, 0.2])


def gaps(view: HeadView) -> Floats:
    moduli = torch.linalg.eigvals(dense(view)).abs().sort(descending=True).values
    found: Floats = (1 - moduli[:, 1]).numpy()
    return found


@pytest.mark.parametrize("kind", ["softmax", "lln_diag", "block_diagonal"])
@pytest.mark.parametrize(
    "effort",
    [
        Effort(max_eigenvalue_tokens=1),
        Effort(max_matrix_tokens=1),
        Effort(mode="exact", tolerance=1e-8, max_spectrum_tokens=1, max_matrix_tokens=1),
    ],
)
def test_iterated_gaps_keep_their_errors(kind: Attention, effort: Effort) -> None:
    view = make_view(kind, 333, sinks=(1, 2), maps=True)
    reading = read(view, "spectral_gap", effort)
    assert reading.error is not None
    assert (reading.error <= effort.tolerance).all() or kind == "softmax"
    assert (abs(reading.values - gaps(view)) <= reading.error + 1e-9).all()


@pytest.mark.parametrize("length", [2, 3, 17, 40])
@pytest.mark.parametrize("kind", KINDS)
def test_iteration_spans_the_whole_space_of_a_short_text(kind: Attention, length: int) -> None:
    view = make_view(kind, length, block_size=16, sinks=(1, 0))
    reading = read(view, "spectral_gap", Effort(max_eigenvalue_tokens=1))
    error = 0 if reading.error is None else reading.error
    assert (abs(reading.values - gaps(view)) <= 1e-5 + error).all()


@pytest.mark.parametrize("kind", ["softmax", "lln_diag"])
def test_an_eigenvalue_of_any_phase_is_found(kind: Attention) -> None:
    """Tokens that attend to the one before have the second eigenvalue off the real axis."""
    view = replace(_shifting(300), attention=kind)
    second = torch.linalg.eigvals(dense(view)).abs().sort(descending=True).values[:, 1]
    for effort in (Effort(max_eigenvalue_tokens=1), Effort(mode="exact")):
        reading = read(view, "spectral_gap", effort)
        error = 1e-9 if reading.error is None else reading.error + 1e-9
        assert (abs(reading.values - (1 - second.numpy())) <= error).all()
    values = torch.linalg.eigvals(dense(view))
    phases = reading.beside["second_phase"].values
    for head, phase in enumerate(phases):
        largest = values[head][(values[head].abs() - second[head]).abs() < 1e-9]
        assert abs(torch.angle(largest).abs().numpy() - phase).min() < 1e-6
    assert reading.error is None
    if kind == "softmax":
        assert (phases > 0.01).all()


@pytest.mark.parametrize("kind", ["softmax", "lln_diag"])
def test_phases_that_are_iterated_lie_within_their_errors(kind: Attention) -> None:
    view = make_view(kind, 333, sinks=(1, 2), scale=1.5)
    phases = read(view, "spectral_gap", Effort(max_eigenvalue_tokens=1)).beside["second_phase"]
    values = torch.linalg.eigvals(dense(view))
    second = values.gather(1, values.abs().argsort(dim=1, descending=True)[:, 1:2]).squeeze(1)
    assert phases.error is not None
    assert (phases.error < np.pi).all()
    assert (abs(phases.values - second.angle().abs().numpy()) <= phases.error + 1e-9).all()
    assert read(view, "spectral_gap").beside["second_phase"].error is None


def test_a_larger_eigenvalue_far_from_one_is_told() -> None:
    """Of blocks that attend to the token before, where the matrix is not kept: the search near 1
    finds a smaller one."""
    view = replace(
        _shifting(400), attention="lln_diag", block_size=200, num_sinks=(0, 0), mix=_SMALL_MIX
    )
    values = torch.linalg.eigvals(dense(view))
    real = values.real.where(values.imag.abs() < 1e-9, 0.0).sort(dim=1).values
    truth = gaps(view)
    assert (truth < 0.9 * (1 - real[:, -2].numpy())).any()  # the search near 1 misses it
    reading = read(view, "spectral_gap", Effort(max_matrix_tokens=1))
    assert reading.error is not None
    assert (abs(reading.values - truth) <= reading.error + 1e-9).all()
    assert (reading.error <= reading.values + 1e-9).all()  # never outside [0, 2 x the gap]
    short_of_room = Effort(max_matrix_tokens=1, max_basis=16)
    unknown = read(view, "spectral_gap", short_of_room)
    assert unknown.error is not None
    is_unknown = unknown.error >= unknown.values - 1e-9
    phase_error = unknown.beside["second_phase"].error
    assert is_unknown.any()
    assert phase_error is not None
    assert (phase_error[is_unknown] == np.pi).all()


def test_small_gaps_have_smaller_errors() -> None:
    """Iteration goes on until its error is small beside the gap, not beside 1."""
    view = replace(
        make_view("lln_diag", 640, block_size=16, sinks=(1, 1), scale=1.5),
        mix=torch.tensor([0.002, 0.003, 0.005]),
    )
    effort = Effort()
    reading = read(view, "spectral_gap", effort)
    assert reading.error is not None
    assert (reading.values < effort.tolerance).all()
    assert (reading.error <= effort.tolerance * reading.values).all()
    assert (abs(reading.values - gaps(view)) <= reading.error).all()


def test_iteration_states_a_large_error_where_it_fails() -> None:
    """A head that shifts: eigenvalues all around a circle."""
    view = _shifting(400)
    reading = read(view, "spectral_gap", Effort(max_basis=64, max_eigenvalue_tokens=1))
    assert reading.error is not None
    assert (abs(reading.values - gaps(view)) <= reading.error).all()


def _shifting(length: int) -> HeadView:
    angle = torch.arange(length, dtype=torch.float64) * (2 * math.pi / length)
    waves = [f(angle * n) for n in range(1, 9) for f in (torch.cos, torch.sin)]
    k = 4 * torch.stack(waves, dim=-1).unsqueeze(1).expand(-1, NUM_HEADS, -1)
    return replace(make_view("lln_diag", length), q=k.roll(1, 0), k=k, attention="softmax")


def test_blocks_that_barely_leak_are_told_apart() -> None:
    """Many eigenvalues just below one another, where random vectors resolve none."""
    view = replace(
        make_view("lln_diag", 640, block_size=16, sinks=(1, 1), scale=1.5),
        mix=torch.tensor([0.02, 0.03, 0.05]),
    )
    effort = Effort(mode="exact", tolerance=1e-7, max_spectrum_tokens=1, max_matrix_tokens=1)
    reading = read(view, "spectral_gap", effort)
    assert reading.error is not None
    assert (reading.error <= 1e-7).all()
    np.testing.assert_allclose(reading.values, gaps(view), atol=1e-7)


def test_half_lln_leaves_at_most_half_a_gap() -> None:
    """With N > block_size x D, 1 - mix is an eigenvalue: the gap is at most the share of LLN."""
    view = replace(make_view("lln_diag", 300, block_size=16), mix=torch.full((NUM_HEADS,), 0.5))
    reading = read(view, "spectral_gap")
    error = 0 if reading.error is None else reading.error
    assert view.num_tokens > view.block_size * HEAD_SIZE
    assert (reading.values <= 0.5 + error + 1e-9).all()


def test_isolated_blocks() -> None:
    """The structural zero is what the dense spectrum says; every block has a chain of its own."""
    view = make_view("block_diagonal", 100)
    reading = read(view, "spectral_gap")
    assert reading.values == pytest.approx(0.0)
    assert gaps(view) == pytest.approx(0.0, abs=1e-12)
    last = replace(view, q=view.q[96:], k=view.k[96:], v=None, x=None)
    np.testing.assert_allclose(reading.beside["by_block"].values[:, 2], gaps(last), atol=1e-9)
    assert (read(replace(view, num_sinks=(1, 0)), "spectral_gap").values > 0.01).all()
    assert (read(view, "stationary").values <= 100).all()


@pytest.mark.parametrize("kind", ["lln_diag", "block_diagonal"])
def test_resolvent_is_the_inverse(kind: Attention) -> None:
    view = make_view(kind, 130, sinks=(2, 1))
    heads = HeadGroup(view, Effort())
    shifts = torch.tensor([1.1, 0.9, 2.0], dtype=torch.float64)
    resolvent = finish(heads.resolvent_at(shifts))
    shifted = shifts.view(-1, 1, 1) * torch.eye(130, dtype=torch.float64) - dense(view)
    vectors = torch.randn(NUM_HEADS, 130, 2, dtype=torch.float64)
    solved = finish(resolvent.solve(vectors))
    torch.testing.assert_close(shifted @ solved, vectors, rtol=1e-8, atol=1e-8)
    solved = finish(resolvent.solve_transposed(vectors))
    torch.testing.assert_close(shifted.mT @ solved, vectors, rtol=1e-8, atol=1e-8)


def test_arnoldi_finds_the_eigenvalues_of_a_matrix() -> None:
    matrix = torch.randn(2, 40, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def apply(vectors: torch.Tensor) -> Steps[torch.Tensor]:
        yield
        return matrix @ vectors

    start = torch.randn(2, 40, 4, dtype=torch.float64)
    iteration = BlockArnoldi(apply, start, 9)
    for _ in range(9):
        finish(iteration.extend())
    ritz = iteration.ritz()
    largest = ritz.values.abs().amax(-1)
    assert (ritz.residuals >= 0).all()
    assert (largest <= torch.linalg.matrix_norm(matrix, 2) + 1e-9).all()
