"""The instruments against dense float64 matrices, in torch operations and in Triton."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.attention import ArgumentError
from kernels.attention.packed_sequences import check_cu_seqlens
from kernels.instruments import Kind, RowStatistics, moments, reference, row_statistics
from tests.kernels.triton_cases import DEVICE

KINDS: tuple[Kind, ...] = ("softmax", "lln", "lln_diag")
LENGTHS = [40, 0, 1, 90]
NUM_ROWS = sum(LENGTHS)

pytestmark = [
    pytest.mark.usefixtures("poisoned_memory"),
    # How the interpreter of Triton 3.6 reads a loop's bounds.
    pytest.mark.filterwarnings("ignore:Conversion of an array with ndim:DeprecationWarning"),
]


def inputs(dim: int = 32, scale: float = 1.0) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(DEVICE)

    return {
        "q": scale * random(NUM_ROWS, 2, dim),
        "k": scale * random(NUM_ROWS, 2, dim),
        "alpha": 1 + 0.3 * random(len(LENGTHS), 2),
        "beta": 1 + 0.3 * random(len(LENGTHS), 2),
        "mix": random(NUM_ROWS, 2).sigmoid(),
        "cu_seqlens": torch.tensor([0, *LENGTHS]).cumsum(0, dtype=torch.int32).to(DEVICE),
        "block_size": 16,
        "num_sinks": (1, 1),
        "k_map": (random(2, dim, dim) / math.sqrt(dim), random(2, dim)),
    }


def assert_near(found: RowStatistics, truth: RowStatistics, tolerance: float) -> None:
    for name, mine, theirs in zip(truth._fields, found, truth, strict=True):
        assert mine.shape == theirs.shape, name
        scale = theirs.abs().amax(dim=(-2, -1), keepdim=True)
        assert bool(((mine.double() - theirs).abs() <= tolerance * scale).all()), name


@pytest.mark.parametrize("scale", [1.0, 8.0])
@pytest.mark.parametrize("kind", KINDS)
def test_row_statistics(kind: Kind, scale: float) -> None:
    given = inputs(scale=scale)
    truth = reference.row_statistics(**given, kind=kind)
    # Scores and the state's log s are those of float32 rows.
    assert_near(row_statistics(**given, kind=kind), truth, 1e-5)


def test_a_row_that_lln_has_no_share_in_has_the_entropy_of_its_block() -> None:
    given = inputs() | {"mix": torch.zeros(NUM_ROWS, 2, device=DEVICE)}
    found = row_statistics(**given, kind="lln_diag").entropy
    truth = reference.row_statistics(**given, kind="lln_diag").entropy
    assert bool(truth.isfinite().all())
    torch.testing.assert_close(found.double(), truth, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_some_rows_are_those_of_all(kind: Kind) -> None:
    given = inputs()
    rows = torch.tensor([0, 39, 40, 41, 130])
    some = row_statistics(**given, kind=kind, rows=rows)
    every = row_statistics(**given, kind=kind)
    torch.testing.assert_close(some.entropy, every.entropy[rows])
    torch.testing.assert_close(some.log_moments, every.log_moments[:, rows])


@pytest.mark.parametrize("dim", [16, 60])
@pytest.mark.parametrize("kind", KINDS)
def test_row_statistics_in_triton(kind: Kind, dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr("kernels.attention.custom_op.runs_in_triton", lambda rows: rows.dim() == 3)
    given = inputs(dim)
    truth = reference.row_statistics(**given, kind=kind)
    assert_near(row_statistics(**given, kind=kind), truth, 2e-5)
    rows = torch.tensor([3, 40, 130])
    some = row_statistics(**given, kind=kind, rows=rows)
    every = row_statistics(**given, kind=kind)
    assert torch.equal(some.entropy, every.entropy[rows])


def test_even_attention_has_the_entropy_of_its_length() -> None:
    q = torch.zeros(50, 1, 16)
    found = row_statistics(q, torch.randn(50, 1, 16), kind="softmax")
    torch.testing.assert_close(found.entropy, torch.full_like(found.entropy, math.log(50)))
    torch.testing.assert_close(found.sum_of_squares, torch.full_like(found.entropy, 1 / 50))
    assert bool(found.log_moments[1:].abs().lt(1e-12).all())


@pytest.mark.parametrize("in_triton", [False, True])
def test_moments(in_triton: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = pytest.importorskip("kernels.instruments.gpu.moments")
    monkeypatch.setattr("kernels.attention.gpu.tiles.piece_tokens", lambda _: 64)
    monkeypatch.setattr(gpu, "piece_tokens", lambda _: 64)
    given = inputs(60)
    # A spread that is small beside its mean.
    x, cu_seqlens = given["q"] + 1000, given["cu_seqlens"]
    found = gpu.moments(x, check_cu_seqlens(cu_seqlens, x)) if in_triton else moments(x, cu_seqlens)
    truth = reference.moments(x, cu_seqlens)
    filled = [0, 2, 3]
    for name, rtol in (("mean", 1e-6), ("variance", 2e-5), ("gram", 1e-6)):
        mine, theirs = getattr(found, name)[filled], getattr(truth, name)[filled]
        torch.testing.assert_close(mine, theirs, rtol=rtol, atol=2e-6)
    assert bool(found.mean[1].isnan().all())
    assert bool((found.gram[1] == 0).all())


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_to_measure(kind: Kind) -> None:
    nothing = torch.zeros(0, 2, 16)
    found = row_statistics(nothing, nothing, kind=kind)
    assert found.entropy.shape == (0, 2)
    assert found.log_moments.shape == (4, 0, 2)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"kind": "linear"}, "got 'linear'"),
        ({"rows": torch.tensor([0, NUM_ROWS])}, f"0 to {NUM_ROWS - 1}, got 0 to {NUM_ROWS}"),
        ({"rows": torch.tensor([2, 1])}, "ascend"),
        ({"rows": torch.tensor([0.5])}, "float32"),
        ({"block_size": 24}, "got 24"),
        ({"alpha": math.inf}, "alpha must be finite"),
    ],
    ids=str,
)
def test_refusals(changed: dict[str, Any], named: str) -> None:
    with pytest.raises(ArgumentError, match=named):
        row_statistics(**({"kind": "lln_diag"} | inputs() | changed))
