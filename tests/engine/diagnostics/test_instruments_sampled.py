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
from engine.errors import InvalidInput
from engine.steps import finish
from engine.types import Attention
from tests.engine.dense import KINDS, NUM_HEADS, Floats, dense, make_view, read, scores

pytestmark = pytest.mark.usefixtures("one_thread")

NUM_TRIALS = 250
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


@pytest.mark.long
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


@pytest.mark.parametrize("num_rows", [1, 2])
def test_a_sample_of_hardly_any_but_the_sharpest_rows_states_an_error(num_rows: int) -> None:
    view = make_view("softmax", 100)
    exact = read(view, "attention_fisher", Effort(mode="exact"))
    for seed in range(9):
        effort = Effort(mode="sampled", sampled_rows=num_rows, seed=seed)
        found = read(view, "attention_fisher", effort)
        assert found.error is not None
        assert np.isfinite(found.error).all()
        assert (found.error > 1e-6).all()
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


@pytest.mark.parametrize("kind", KINDS)
def test_operator_is_the_matrix(kind: Attention) -> None:
    view = make_view(kind, 130, sinks=(2, 1), maps=True)
    operator = finish(HeadGroup(view, Effort()).operator())
    vectors = torch.randn(NUM_HEADS, 130, 3, dtype=torch.float64)
    torch.testing.assert_close(finish(operator(vectors)), dense(view) @ vectors)
    torch.testing.assert_close(finish(operator.transposed(vectors)), dense(view).mT @ vectors)


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
