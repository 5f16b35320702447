"""How far LLN+Diag is from softmax on the same head."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from engine.diagnostics import Effort, HeadView
from engine.types import Attention
from tests.engine.dense import KINDS, dense, make_view, read, scores

pytestmark = pytest.mark.usefixtures("one_thread")

NAME = "softmax_divergence"


def test_softmax_is_no_distance_from_itself() -> None:
    found = read(make_view("softmax", 1_100), NAME)
    assert found.error is None
    assert not found.values.any()
    assert not found.beside["output_error"].values.any()


@pytest.mark.parametrize("length", [1, 3, 30])
def test_a_single_block_is_softmax(length: int) -> None:
    found = read(make_view("block_diagonal", length), NAME)
    np.testing.assert_allclose(found.values, 0, atol=1e-14)
    np.testing.assert_allclose(found.beside["total_variation"].values, 0, atol=1e-14)


@pytest.mark.parametrize("kind", KINDS)
def test_where_the_two_differ(kind: Attention) -> None:
    """In the quarter of the text whose keys the blocks of the others do not see."""
    view = make_view(kind, 120)
    found = read(view, NAME)
    own = dense(view)
    kl = (torch.xlogy(own, own) - own * scores(view).log_softmax(-1)).sum(-1).clamp_min(0)
    parts = kl.view(-1, 4, 30).mean(-1).numpy()
    np.testing.assert_allclose(found.beside["by_part"].values, parts, atol=1e-12)
    if kind != "softmax":
        worst = kl.topk(4, dim=1).indices.numpy()
        np.testing.assert_array_equal(found.beside["worst_rows"].values, worst)


def test_of_repeated_tokens_only_the_hidden_keys_tell() -> None:
    """Softmax is even over all keys, and a block is even over its own."""
    one = make_view("block_diagonal", 1)
    assert one.v is not None
    q, k, v = (part.repeat(96, 1, 1) for part in (one.q, one.k, one.v))
    view = HeadView(q=q, k=k, v=v, attention="block_diagonal", block_size=48)
    found = read(view, NAME)
    np.testing.assert_allclose(found.values, math.log(2))
    np.testing.assert_allclose(found.beside["total_variation"].values, 0.5)
    np.testing.assert_allclose(found.beside["output_error"].values, 0, atol=1e-12)


@pytest.mark.parametrize("kind", ["lln", "lln_diag", "block_diagonal"])
def test_errors_of_a_sample_hold(kind: Attention) -> None:
    view = make_view(kind, 400, sinks=(1, 1))
    exact = read(view, NAME, Effort(mode="exact"))
    names = ["quantiles", "total_variation", "output_error", "by_part"]
    within: dict[str, list[bool]] = {name: [] for name in ("", *names)}
    for seed in range(100):
        found = read(view, NAME, Effort(mode="sampled", seed=seed))
        assert "worst_rows" not in found.beside
        for name, held in within.items():
            sampled, true = ((one.beside[name] if name else one) for one in (found, exact))
            assert sampled.error is not None
            held += (np.abs(sampled.values - true.values) <= 3 * sampled.error).ravel().tolist()
    for name, held in within.items():
        assert np.mean(held) >= 0.99, (name, np.mean(held))
