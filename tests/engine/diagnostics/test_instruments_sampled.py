"""Sampled and iterated readings: their stated errors hold, and are no wider than necessary."""

from __future__ import annotations

import gc
import math
import warnings
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from engine.diagnostics import (
    HEAD_INSTRUMENTS,
    Effort,
    HeadView,
    Quantity,
    Reading,
    find_instruments,
    measure,
)
from engine.diagnostics.head_group import HeadGroup
from engine.diagnostics.linear_algebra import BlockArnoldi
from engine.errors import InvalidInput
from engine.steps import Steps, finish
from engine.types import Attention
from tests.engine.dense import HEAD_SIZE, KINDS, NUM_HEADS, Floats, dense, make_view, read, scores

pytestmark = pytest.mark.usefixtures("one_thread")

NUM_TRIALS = 500
_SMALL_MIX = torch.tensor([0.05, 0.1, 0.2])
SAMPLED = {
    "softmax": (
        "entropy",
        "lognormality",
        "head_scale",
        "attention_fisher",
        "similarity",
        "pruning",
        "weight_fisher",
    ),
    "lln": ("entropy", "lognormality", "weight_fisher"),
    "lln_diag": ("entropy", "lognormality", "weight_fisher", "effective_rank"),
}


@pytest.mark.parametrize("kind", list(SAMPLED))
def test_standard_errors_hold(kind: Attention) -> None:
    """Within three of them in at least 99 of 100 trials, and within one about as often as a normal
    variable is."""
    view = make_view(kind, 160, sinks=(1, 1))
    exact = measure(view, SAMPLED[kind], Effort(mode="exact", max_dense_tokens=160))
    trials = {name: Trials() for name in SAMPLED[kind]}
    for seed in range(math.ceil(NUM_TRIALS / NUM_HEADS)):
        effort = Effort(mode="sampled", max_dense_tokens=1, seed=seed)
        for name, reading in measure(view, SAMPLED[kind], effort).items():
            trials[name].add(_sampled_part(reading), _sampled_part(exact[name]))
    for name, trial in trials.items():
        assert trial.share_within(3) >= 0.99, (name, trial.share_within(3))
        assert 0.5 <= trial.share_within(1) <= 0.98, (name, trial.share_within(1))


def test_a_sample_knows_of_the_few_sharp_rows_it_misses() -> None:
    """Where they hold most of what is measured."""
    view = make_view("softmax", 240, sinks=(1, 1))
    name = "attention_fisher"
    exact = read(view, name, Effort(mode="exact", max_dense_tokens=1))
    trial = Trials()
    for seed in range(math.ceil(NUM_TRIALS / NUM_HEADS)):
        trial.add(read(view, name, Effort(mode="sampled", max_dense_tokens=1, seed=seed)), exact)
    assert trial.share_within(3) >= 0.99
    assert 0.5 <= trial.share_within(1) <= 0.9


def test_a_sample_of_none_but_the_sharpest_rows_states_an_error() -> None:
    view = make_view("softmax", 100)
    exact = read(view, "attention_fisher", Effort(mode="exact"))
    for seed in range(9):
        found = read(view, "attention_fisher", Effort(mode="sampled", sampled_rows=1, seed=seed))
        assert found.error is not None
        assert np.isfinite(found.error).all()
        np.testing.assert_allclose(found.values, exact.values, atol=0.1)


def _sampled_part(reading: Reading) -> Quantity:
    """The value; of the weights' Fisher information the part that is sampled for every kind."""
    if "trace_k" in reading.beside:
        return reading.beside["trace_k"]
    return Quantity(values=reading.values, unit=reading.unit, error=reading.error)


class Trials:
    def __init__(self) -> None:
        self._standardised: list[Floats] = []

    def add(self, sampled: Reading | Quantity, exact: Reading | Quantity) -> None:
        assert sampled.error is not None
        assert exact.error is None
        self._standardised.append((sampled.values - exact.values) / sampled.error)

    def share_within(self, errors: float) -> float:
        return float((np.abs(np.concatenate(self._standardised)) <= errors).mean())


def test_the_bracket_narrows_the_sampling_error() -> None:
    """LLN's entropy is sampled as what its bracket does not explain."""
    view = make_view("lln", 400)
    effort = Effort(mode="sampled")
    rows = finish(HeadGroup(view, effort).rows()).statistics.entropy
    plain = (rows.std(1) / math.sqrt(rows.shape[1])).numpy()
    error = read(view, "entropy", effort).error
    assert error is not None
    assert (error < 0.5 * plain).all()


@pytest.mark.parametrize("kind", ["lln", "lln_diag"])
def test_entropy_lies_in_its_bracket(kind: Attention) -> None:
    reading = read(make_view(kind, 200, sinks=(1, 0)), "entropy")
    assert (reading.beside["lower"].values <= reading.values).all()
    assert (reading.values <= reading.beside["upper"].values).all()


def test_same_seed_same_reading() -> None:
    view = make_view("lln_diag", 300)
    effort = Effort(mode="sampled", seed=3)
    for name in HEAD_INSTRUMENTS:
        np.testing.assert_array_equal(
            read(view, name, effort).values, read(view, name, effort).values
        )


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


@pytest.mark.parametrize("kind", KINDS)
def test_operator_is_the_matrix(kind: Attention) -> None:
    view = make_view(kind, 130, sinks=(2, 1), maps=True)
    operator = finish(HeadGroup(view, Effort()).operator())
    vectors = torch.randn(NUM_HEADS, 130, 3, dtype=torch.float64)
    torch.testing.assert_close(finish(operator(vectors)), dense(view) @ vectors)
    torch.testing.assert_close(finish(operator.transposed(vectors)), dense(view).mT @ vectors)


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


def test_temperature_ignores_what_softmax_ignores() -> None:
    view = make_view("softmax", 77)
    shifted = replace(view, k=view.k + 5.0)
    np.testing.assert_allclose(
        read(shifted, "temperature").values, read(view, "temperature").values, rtol=1e-9
    )


def test_entropy_rises_with_temperature() -> None:
    views = [make_view("softmax", 100, scale=scale) for scale in (2.0, 1.0, 0.5)]
    for cold, warm in pairwise(views):
        assert (read(cold, "temperature").values < read(warm, "temperature").values).all()
        assert (read(cold, "entropy").values < read(warm, "entropy").values).all()


def test_corrected_predictions_meet_gaussian_heads() -> None:
    """Var log P of softmax: s^2 + s^4 / (2 D), where the paper's s^2 is too small."""
    view = replace(make_view("softmax", 1_000, scale=1.4), v=None, x=None)
    view = replace(view, q=view.q - view.q.mean(0), k=view.k - view.k.mean(0))
    reading = read(view, "lognormality", Effort(mode="exact"))
    corrected = reading.beside["corrected_prediction"].values
    np.testing.assert_allclose(reading.values, corrected, rtol=0.06)
    assert (reading.beside["paper_prediction"].values < reading.values).all()


def test_some_heads_alone_read_the_same() -> None:
    view = make_view("lln_diag", 200, sinks=(1, 1), maps=True)
    some = view.only([2, 0])
    for name, instrument in HEAD_INSTRUMENTS.items():
        if not instrument.compares_heads:
            whole = read(view, name).values[[2, 0]]
            np.testing.assert_allclose(read(some, name).values, whole, rtol=1e-5)


def test_long_texts_are_read_a_few_heads_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    view = make_view("lln_diag", 200, sinks=(1, 1))
    whole = measure(view)
    monkeypatch.setattr("engine.diagnostics.head_readings._TOKENS_A_GROUP", 200)
    for name, reading in measure(view).items():
        error = 0 if reading.error is None else reading.error
        assert (abs(reading.values / whole[name].values - 1) <= 1e-6 + error).all(), name
        assert set(reading.beside) == set(whole[name].beside)


def test_a_view_without_values_reads_what_it_can() -> None:
    view = replace(make_view("softmax", 9), v=None, x=None, out=None)
    assert {"pruning", "weight_fisher"}.isdisjoint(measure(view))
    with pytest.raises(InvalidInput, match="pruning needs v"):
        measure(view, ["pruning"])


def test_unknown_instrument_is_named() -> None:
    with pytest.raises(InvalidInput, match="'entrophy'") as caught:
        find_instruments(["entropy", "entrophy"])
    assert caught.value.code == "unknown_instrument"


def bad_views() -> Iterator[tuple[dict[str, object], str]]:
    view = make_view("softmax", 5)
    yield {"k": view.k[:4]}, "alike and not empty"
    yield {"q": view.q[:0], "k": view.k[:0]}, "alike and not empty"
    yield {"q": view.q * math.nan}, "not finite"
    yield {"attention": "lln", "alpha": None}, "needs alpha"
    yield {"block_size": 0}, "block_size must be at least 1"


@pytest.mark.parametrize(("changes", "message"), list(bad_views()))
def test_bad_views_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        HeadView(**{**vars(make_view("softmax", 5)), **changes})


@pytest.mark.parametrize(
    "limit",
    [
        "max_exact_tokens",
        "sampled_rows",
        "tolerance",
        "max_basis",
        "max_matrix_tokens",
        "max_eigenvalue_tokens",
    ],
)
def test_bad_efforts_are_refused(limit: str) -> None:
    with pytest.raises(InvalidInput, match=f"{limit} must be positive"):
        Effort(**{limit: 0})  # type: ignore[arg-type]


def test_scores_are_those_of_the_view() -> None:
    """The dense reference and the instruments agree on the scale."""
    view = make_view("softmax", 7)
    expected = (view.q[:, 0] @ view.k[:, 0].T) * view.scale
    torch.testing.assert_close(scores(view)[0], expected)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_of_a_reading_waits_for_the_garbage_collector(kind: Attention) -> None:
    """Of a long text it would be gigabytes."""
    view = make_view(kind, 640, block_size=64, sinks=(1, 1))
    effort = Effort(mode="sampled", max_dense_tokens=1)

    def tensors() -> set[int]:
        with warnings.catch_warnings(action="ignore"):  # some of torch's own, when looked at
            return {id(one) for one in gc.get_objects() if isinstance(one, torch.Tensor)}

    measure(view, effort=effort)  # what is made once and kept
    gc.collect()
    gc.disable()
    try:
        before = tensors()
        measure(view, effort=effort)
        assert tensors() <= before
    finally:
        gc.enable()
