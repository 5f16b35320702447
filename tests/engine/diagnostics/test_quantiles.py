"""How values spread over the rows of a head, against all rows of the dense matrix."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.diagnostics import HEAD_INSTRUMENTS, Effort, HeadView, measure
from engine.types import Attention
from tests.engine.dense import KINDS, check_finite, dense, make_view, read, scores, seen

pytestmark = pytest.mark.usefixtures("one_thread")

SHARES = (0.0, 0.1, 0.5, 0.9, 1.0)

OfRows: TypeAlias = Callable[[HeadView], Tensor]


def entropies(view: HeadView) -> Tensor:
    return -torch.xlogy(dense(view), dense(view)).sum(-1)


def temperatures(view: HeadView) -> Tensor:
    spread = [_of_seen(view, scores(view)[:, row], row).std(1, correction=0) for row in _rows(view)]
    return 1 / torch.stack(spread, dim=1)


def log_variances(view: HeadView) -> Tensor:
    logs = dense(view).log()
    found = [_of_seen(view, logs[:, row], row).var(1, correction=0) for row in _rows(view)]
    return torch.stack(found, dim=1)


def _rows(view: HeadView) -> range:
    return range(view.num_tokens)


def _of_seen(view: HeadView, row: Tensor, index: int) -> Tensor:
    return row[:, seen(view)[index]]


def informations(view: HeadView) -> Tensor:
    matrix = dense(view)
    return (torch.xlogy(matrix, matrix) - matrix * matrix.mean(1, keepdim=True).log()).sum(-1)


def distances(view: HeadView) -> Tensor:
    places = torch.arange(view.num_tokens, dtype=torch.float64)
    return (dense(view) * (places - places.unsqueeze(1)).abs()).sum(-1)


def additions(view: HeadView) -> Tensor:
    assert view.v is not None
    assert view.out is not None
    added = torch.einsum("hij,jhd,hdw->hiw", dense(view), view.v, view.out)
    return added.square().sum(-1).sqrt()


def divergences(view: HeadView) -> Tensor:
    own = dense(view)
    return (torch.xlogy(own, own) - own * scores(view).log_softmax(-1)).sum(-1).clamp_min(0)


TRUTH: Mapping[str, OfRows] = {
    "entropy": entropies,
    "temperature": temperatures,
    "lognormality": log_variances,
    "mutual_information": informations,
    "head_scale": distances,
    "pruning": additions,
    "attention_fisher": lambda view: 1 - dense(view).square().sum(-1),
    "softmax_divergence": divergences,
}


@pytest.mark.parametrize("kind", KINDS)
def test_of_every_row(kind: Attention) -> None:
    view = make_view(kind, 97, sinks=(2, 1))
    of = torch.tensor(SHARES, dtype=torch.float64)
    found = measure(view, effort=Effort(quantiles=SHARES))
    with_quantiles = {name for name, one in found.items() if "quantiles" in one.beside}
    assert with_quantiles == {*TRUTH, "head_kind"}
    for name, rows_of in TRUTH.items():
        check_finite(found[name])
        quantiles = found[name].beside["quantiles"]
        assert quantiles.error is None, name
        expected = torch.quantile(rows_of(view), of, dim=1).T.numpy()
        np.testing.assert_allclose(quantiles.values, expected, rtol=1e-6, atol=1e-9, err_msg=name)


def test_only_where_asked_for() -> None:
    found = measure(make_view("softmax", 20))
    assert {name for name, one in found.items() if "quantiles" in one.beside} == {
        "softmax_divergence"
    }


@pytest.mark.parametrize("kind", KINDS)
def test_sampled_rows_state_an_error_that_holds(kind: Attention) -> None:
    view = make_view(kind, 300, sinks=(1, 1))
    shares = (0.1, 0.5, 0.9)
    names = ["entropy", "head_scale", "attention_fisher"]
    exact = measure(view, names, Effort(mode="exact", quantiles=shares))
    held: list[bool] = []
    for seed in range(30):
        effort = Effort(mode="sampled", seed=seed, quantiles=shares, sampled_rows=64)
        for name, reading in measure(view, names, effort).items():
            sampled, true = (one.beside["quantiles"] for one in (reading, exact[name]))
            if sampled.error is None:  # known of every row
                np.testing.assert_allclose(sampled.values, true.values, rtol=1e-5, atol=1e-9)
                continue
            held += (np.abs(sampled.values - true.values) <= 3 * sampled.error).ravel().tolist()
    assert not held or np.mean(held) >= 0.99


def test_the_mean_row_information_is_the_mutual_information() -> None:
    view = make_view("lln", 80)
    middle = math.fsum(informations(view)[0].tolist()) / 80
    assert read(view, "mutual_information").values[0] == pytest.approx(middle, rel=1e-9)


def test_every_instrument_of_rows_is_here() -> None:
    without = set(HEAD_INSTRUMENTS) - set(TRUTH)
    assert without == {
        *("spectral_gap", "stationary", "effective_rank", "energy"),
        *("similarity", "weight_fisher", "head_kind"),
    }
