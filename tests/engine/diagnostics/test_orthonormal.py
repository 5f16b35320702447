"""Orthonormal columns by Cholesky, and where it does not suffice."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.diagnostics.linear_algebra import orthonormal, well_conditioned

pytestmark = pytest.mark.usefixtures("one_thread")


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def of_condition(condition: float) -> Tensor:
    scales = torch.logspace(0, -torch.tensor(condition).log10().item(), 6, dtype=torch.float64)
    turn = torch.linalg.qr(random(2, 6, 6)).Q
    columns: Tensor = torch.linalg.qr(random(2, 333, 6)).Q * scales @ turn
    return columns


@pytest.mark.parametrize("condition", [1.0, 1e4, 1e9, 1e15])
def test_columns_are_orthonormal_and_span_what_they_came_from(condition: float) -> None:
    columns = of_condition(condition)
    q, r = orthonormal(columns)
    torch.testing.assert_close(
        q.mT @ q, torch.eye(6).double().expand(2, -1, -1), atol=1e-12, rtol=0
    )
    torch.testing.assert_close(q @ r, columns, atol=1e-12, rtol=0)
    assert (r.tril(-1) == 0).all()


def test_columns_of_any_length() -> None:
    columns = random(1, 40, 3) * torch.tensor([1e-100, 1.0, 1e100], dtype=torch.float64)
    found = well_conditioned(columns)
    assert found is not None
    torch.testing.assert_close(found[0] @ found[1] / columns, torch.ones_like(columns))


@pytest.mark.parametrize("columns", [torch.zeros(1, 9, 2), torch.ones(1, 9, 2), random(1, 3, 4)])
def test_dependent_columns_are_noticed(columns: Tensor) -> None:
    assert well_conditioned(columns) is None
    q, r = orthonormal(columns)
    torch.testing.assert_close(q @ r, columns, atol=1e-6, rtol=1e-6)
