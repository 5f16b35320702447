"""Activations: those that checkpoints name, with the same bits for a row in every batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from engine.model.activations import activate
from engine.model.linear import linear, pack
from engine.model.weights import Activation, Affine

PUBLISHED: Mapping[Activation, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}


@pytest.fixture(params=[1, 3, 5, 8])
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def half_of(rows: int, width: int) -> Tensor:
    """As a gated layer has it: not contiguous."""
    both = torch.randn(rows, 2 * width, generator=torch.Generator().manual_seed(width))
    return 3 * both.chunk(2, dim=-1)[0]


@pytest.mark.parametrize("activation", PUBLISHED)
def test_they_match_torch(activation: Activation) -> None:
    x = half_of(200, 100)
    torch.testing.assert_close(activate(x, activation), PUBLISHED[activation](x))
    assert activate(x, None) is x


@pytest.mark.parametrize("activation", PUBLISHED)
@pytest.mark.parametrize("width", [100, 1152])
@pytest.mark.usefixtures("threads")
def test_other_rows_change_no_bit(activation: Activation, width: int) -> None:
    x = half_of(1400, width)
    whole = activate(x, activation)
    for start, end in ((0, 1), (3, 4), (5, 700), (7, 1033), (9, 1300), (1024, 1025)):
        assert torch.equal(activate(x[start:end], activation), whole[start:end]), (start, end)


@pytest.mark.parametrize("activation", PUBLISHED)
@pytest.mark.usefixtures("threads")
@torch.inference_mode()
def test_they_follow_products_that_other_rows_do_not_change(activation: Activation) -> None:
    drawn = torch.Generator().manual_seed(0)
    x = torch.randn(300, 1152, generator=drawn)
    dense = Affine(torch.randn(96, 1152, generator=drawn) / 32, torch.randn(96, generator=drawn))
    layer = pack(dense, torch.float32)
    whole = linear(x, layer, activation)
    torch.testing.assert_close(whole, PUBLISHED[activation](F.linear(x, *dense)))
    for start, end in ((0, 1), (7, 8), (5, 80), (7, 290)):
        assert torch.equal(linear(x[start:end], layer, activation), whole[start:end]), (start, end)
