"""Every instrument of heads against the same quantity of a dense float64 matrix."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from engine.diagnostics import HEAD_INSTRUMENTS, Effort, HeadView, Reading, measure
from engine.types import Attention
from tests.engine.dense import (
    DENSE,
    HEAD_SIZE,
    KINDS,
    check_finite,
    dense,
    make_view,
    read,
    scores,
)
from tests.engine.dense_truths import TRUTH, TRUTH_AT_LENGTH, Truth, weight_fishers

RTOL = 1e-6


pytestmark = pytest.mark.usefixtures("one_thread")


def test_every_instrument_has_a_truth() -> None:
    assert set(TRUTH) == set(HEAD_INSTRUMENTS)


def check(view: HeadView, name: str, reading: Reading, truth: Truth | None = None) -> None:
    """Values and what stands beside them: exact to RTOL, or within four stated errors."""
    check_finite(reading)
    for part, expected in (truth or TRUTH[name])(view).items():
        found = reading if part == "" else reading.beside[part]
        gap = np.abs(found.values - expected.double().numpy())
        allowed = RTOL * np.abs(expected.double().numpy()) + 1e-9
        if found.error is not None:
            allowed = allowed + 4 * found.error
        assert (gap <= allowed).all(), (name, part, found.values, expected, found.error)


SHAPES = [
    pytest.param(1, (0, 0), id="1"),
    pytest.param(2, (1, 1), id="2-sinks"),
    pytest.param(48, (0, 0), id="one-block"),
    pytest.param(63, (5, 2), id="63-sinks"),
    pytest.param(97, (50, 3), id="97-sinks-beyond-a-block"),
    pytest.param(149, (1, 1), id="149-sinks"),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("length", "sinks"), SHAPES)
def test_short_texts_are_read_exactly(kind: Attention, length: int, sinks: tuple[int, int]) -> None:
    view = make_view(kind, length, sinks=sinks, maps=length == 63)
    for name, reading in measure(view, effort=DENSE).items():
        if name == "stationary" and kind == "block_diagonal" and sinks == (0, 0) and length > 48:
            continue  # has a test of its own
        assert reading.error is None, name
        check(view, name, reading)


@pytest.mark.parametrize("kind", KINDS)
def test_long_texts(kind: Attention) -> None:
    """Defaults, where spectra are iterated."""
    view = make_view(kind, 300, sinks=(1, 1))
    for name in TRUTH:
        if name not in ("attention_fisher", "weight_fisher"):
            check(view, name, read(view, name))


def test_mode_exact_finds_the_gap_of_heads_that_look_back_in_long_texts() -> None:
    """Their eigenvalues lie around the circle, in every block, where iteration hardly finds them;
    matrices of long texts are not kept."""
    view = make_view("lln_diag", 230, sinks=(1, 1))
    keys = torch.nn.functional.normalize(view.k, dim=-1) * 9
    view = HeadView(**{**vars(view), "q": keys.roll(1, dims=0), "k": keys})
    found = read(view, "spectral_gap", Effort(mode="exact", max_matrix_tokens=1))
    assert found.error is None
    for head, matrix in enumerate(dense(view).numpy()):
        values = np.linalg.eigvals(matrix)
        second = values[np.abs(values).argsort()[-2]]
        assert found.values[head] == pytest.approx(1 - abs(second))
        phase = found.beside["second_phase"].values[head]
        assert phase == pytest.approx(abs(np.angle(second)))


@pytest.mark.parametrize("kind", KINDS)
def test_weights_in_float32_are_exact_enough(kind: Attention) -> None:
    """Where rows are sampled, weights are held in float32; what is called exact stays so."""
    view = make_view(kind, 310, sinks=(1, 1), dtype=torch.float32)
    effort = Effort(mode="sampled", max_float64_tokens=1)
    for name in TRUTH:
        if name not in ("attention_fisher", "weight_fisher"):
            check(view, name, read(view, name, effort))
    trace = read(view, "weight_fisher", effort)
    if trace.error is None:
        np.testing.assert_allclose(trace.values, weight_fishers(view)[""].numpy(), rtol=RTOL)


@pytest.mark.parametrize("kind", KINDS)
def test_texts_beyond_those_read_exactly(kind: Attention) -> None:
    """By default, and where the matrix's spectra would take a minute each, without those."""
    view = make_view(kind, 1_152, sinks=(1, 1), block_size=512, dtype=torch.float32)
    readings = measure(view, list(TRUTH_AT_LENGTH))
    for name, truth in TRUTH_AT_LENGTH.items():
        check(view, name, readings[name], truth)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_spectra_of_2048_tokens(kind: Attention) -> None:
    view = make_view(kind, 2_048, sinks=(1, 1), block_size=512, dtype=torch.float32)
    for name in ("spectral_gap", "effective_rank", "lognormality"):
        check(view, name, read(view, name))


@pytest.mark.parametrize("kind", KINDS)
def test_gate_per_token(kind: Attention) -> None:
    view = make_view(kind, 130, sinks=(1, 1))
    gates = torch.rand(130, view.num_heads, generator=torch.Generator().manual_seed(1))
    gated = HeadView(**{**vars(view), "mix": gates})
    for name, reading in measure(gated, effort=DENSE).items():
        check(gated, name, reading)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [2, 30, 200])
def test_identical_tokens(kind: Attention, length: int) -> None:
    one = make_view(kind, 1)
    alike = {name: getattr(one, name).repeat(length, 1, 1) for name in ("q", "k", "v")}
    assert one.x is not None
    assert one.token_kinds is not None
    alike |= {"x": one.x.repeat(length, 1), "token_kinds": one.token_kinds.repeat(length)}
    view = HeadView(**{**vars(one), **alike, "block_size": 512})
    readings = measure(view)
    for reading in readings.values():
        check_finite(reading)
    np.testing.assert_allclose(readings["entropy"].values, math.log(length), atol=1e-6)
    np.testing.assert_allclose(readings["effective_rank"].values, 1, rtol=1e-6)
    np.testing.assert_allclose(readings["mutual_information"].values, 0, atol=1e-6)
    np.testing.assert_allclose(readings["lognormality"].beside["skewness"].values, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_one_hot_attention(kind: Attention) -> None:
    """Every token attends to itself alone: no entropy, and a chain that never moves."""
    length = 16
    tokens = 100 * torch.eye(length, HEAD_SIZE).unsqueeze(1).expand(-1, 3, -1).double()
    view = HeadView(**{**vars(make_view(kind, length)), "q": tokens, "k": tokens})
    readings = measure(view)
    for reading in readings.values():
        check_finite(reading)
    assert readings["entropy"].values == pytest.approx(0.0, abs=1e-12)
    assert readings["spectral_gap"].values == pytest.approx(0.0, abs=1e-9)
    assert readings["effective_rank"].values == pytest.approx(length)
    assert readings["attention_fisher"].values == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_scores_beyond_the_range_of_exp(kind: Attention, dtype: torch.dtype) -> None:
    view = make_view(kind, 130, scale=300.0, sinks=(1, 1), dtype=dtype)
    assert scores(view).abs().max() > 1e4
    readings = measure(view)
    for reading in readings.values():
        check_finite(reading)
    for name in ("entropy", "temperature", "head_scale"):
        check(view, name, readings[name])


def test_exactness_on_request_reads_every_row() -> None:
    view = make_view("softmax", 200)
    assert read(view, "entropy", Effort(max_exact_tokens=64)).error is not None
    assert read(view, "entropy", Effort(mode="exact", max_exact_tokens=64)).error is None
    assert read(view, "entropy", Effort(mode="sampled")).error is not None
