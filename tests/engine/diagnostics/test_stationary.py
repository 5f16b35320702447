"""Where the chain of a softmax head ends: exact where its matrix fits, else with a true error."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from engine.diagnostics import Effort, HeadView, stationary
from tests.engine.dense import Floats, dense, make_view, read

pytestmark = pytest.mark.usefixtures("one_thread")


def slow_view() -> HeadView:
    """Three heads that hardly mix: tokens that look alike attend to each other."""
    return make_view("softmax", 260, scale=2.0)


def ends(view: HeadView) -> Floats:
    matrix = dense(view)
    even = 1 / view.num_tokens
    system = matrix.mT - torch.eye(view.num_tokens, dtype=torch.float64) + even
    found: Floats = torch.linalg.solve(system, torch.full_like(matrix[:, 0], even)).numpy()
    return found


def perplexities(masses: Floats) -> Floats:
    logs = np.log(np.maximum(masses, 1e-300))
    found: Floats = np.exp(-(masses * logs).sum(1))
    return found


def test_a_chain_that_hardly_mixes_is_exact() -> None:
    view = slow_view()
    reading, masses = read(view, "stationary"), ends(view)
    assert reading.error is None
    np.testing.assert_allclose(reading.values, perplexities(masses), rtol=1e-6)
    leading = -np.sort(-masses, axis=1)[:, :8]
    np.testing.assert_allclose(reading.beside["top_mass"].values, leading, rtol=1e-6)


@pytest.mark.parametrize("max_powers", [1, 5, 200])
def test_powers_state_an_error_in_tokens(max_powers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stationary, "_MAX_POWERS", max_powers)
    view = slow_view()
    reading, masses = read(view, "stationary", Effort(max_matrix_tokens=1)), ends(view)
    assert reading.error is not None
    assert (abs(reading.values - perplexities(masses)) <= reading.error + 1e-6).all()
    top = reading.beside["top_mass"]
    assert top.error is not None
    leading = -np.sort(-masses, axis=1)[:, :8]
    assert (abs(top.values - leading) <= top.error + 1e-9).all()


@pytest.mark.parametrize("mix", [1e-6, 3e-8, 1e-10])
def test_blocks_that_hardly_mix_are_exact_or_state_an_error(mix: float) -> None:
    view = replace(make_view("lln_diag", 160, block_size=64), mix=torch.full((3,), mix))
    reading, masses = read(view, "stationary"), ends(view)
    error = 1e-4 * reading.values if reading.error is None else reading.error
    assert (abs(reading.values - perplexities(masses)) <= error).all()


def test_blocks_that_mix_less_than_rounding_say_nothing_of_their_end() -> None:
    view = replace(make_view("lln_diag", 160, block_size=64), mix=torch.full((3,), 1e-17))
    reading = read(view, "stationary")
    assert reading.error is not None
    np.testing.assert_array_equal(reading.error, 159.0)
    masses = reading.beside["top_mass"].error
    assert masses is not None
    np.testing.assert_array_equal(masses, 1.0)


def test_two_groups_that_never_meet_say_nothing_of_their_end() -> None:
    view = make_view("softmax", 96)
    apart = torch.where(torch.arange(96) % 3 == 0, 40.0, -40.0).view(-1, 1, 1)
    view = replace(view, q=view.q + apart, k=view.k + apart)
    reading = read(view, "stationary")
    assert reading.error is not None
    np.testing.assert_array_equal(reading.error, 95.0)
