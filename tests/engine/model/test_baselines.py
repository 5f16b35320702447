"""Each baseline against its formula, written out densely in float64."""

from __future__ import annotations

import math
from itertools import accumulate, pairwise

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from engine.errors import InvalidInput
from engine.model.baselines import BASELINES, Baseline, BlockDiagonal, find_baseline
from engine.model.feature_attention import Performer, orthogonal_directions
from engine.model.landmark_attention import Linformer, Nystromformer, pseudo_inverse
from kernels.attention import PackedSequences

LENGTHS = (1, 63, 0, 300, 130)
HEADS, DIM = 3, 32

each_baseline = pytest.mark.parametrize("baseline", BASELINES.values(), ids=BASELINES.keys())


def packed(
    dtype: torch.dtype = torch.float32, *, spread: float = 1.0
) -> tuple[Tensor, Tensor, Tensor, PackedSequences]:
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(
        3, sum(LENGTHS), HEADS, DIM, generator=generator, dtype=torch.float64
    ).unbind()
    return (spread * q).to(dtype), (spread * k).to(dtype), v.to(dtype), sequences(*LENGTHS)


def sequences(*lengths: int) -> PackedSequences:
    return PackedSequences.of([0, *accumulate(lengths)], torch.device("cpu"))


def dense(baseline: Baseline, q: Tensor, k: Tensor, v: Tensor, bounds: PackedSequences) -> Tensor:
    out = torch.zeros_like(v, dtype=torch.float64)
    for start, end in pairwise(bounds.host_bounds()):
        if end > start:
            matrix = baseline.matrix(q[start:end], k[start:end])
            assert matrix.dtype == torch.float64
            out[start:end] = torch.einsum("hij,jhd->ihd", matrix, v[start:end].double())
    return out


@each_baseline
@pytest.mark.parametrize("spread", [0.3, 1.0, 3.0])
def test_formula(baseline: Baseline, spread: float) -> None:
    q, k, v, bounds = packed(torch.float64, spread=spread)
    found = baseline(q, k, v, bounds)
    assert found.shape == v.shape
    torch.testing.assert_close(found, dense(baseline, q, k, v, bounds), rtol=1e-8, atol=1e-9)


@each_baseline
def test_float32_and_bfloat16(baseline: Baseline) -> None:
    for dtype, tolerance in ((torch.float32, 2e-3), (torch.bfloat16, 3e-2)):
        q, k, v, bounds = packed(dtype)
        found = baseline(q, k, v, bounds)
        assert found.dtype == dtype
        wanted = dense(baseline, q, k, v, bounds)
        torch.testing.assert_close(found.double(), wanted, rtol=tolerance, atol=tolerance)


@each_baseline
def test_rows_sum_to_one(baseline: Baseline) -> None:
    """Values of one give one back, whatever the scores: Nystromformer's inverse is approximate."""
    q, k, v, bounds = packed(torch.float64)
    tolerance = 1e-2 if baseline.name == "nystromformer" else 1e-9
    found = baseline(q, k, torch.ones_like(v), bounds)
    torch.testing.assert_close(found, torch.ones_like(v), rtol=0, atol=tolerance)


@each_baseline
def test_extreme_scores_stay_finite(baseline: Baseline) -> None:
    q, k, v, bounds = packed(spread=60.0)
    assert bool(baseline(q, k, v, bounds).isfinite().all())


@each_baseline
def test_zero_queries_and_keys(baseline: Baseline) -> None:
    _, _, v, bounds = packed(torch.float64)
    zero = torch.zeros_like(v)
    found = baseline(zero, zero, v, bounds)
    start = bounds.host_bounds()[-2]
    if isinstance(baseline, BlockDiagonal):
        start += (LENGTHS[-1] - 1) // baseline.block_size * baseline.block_size
    last = v[start:].mean(0)
    wanted = last if baseline.name not in ("lln_diag", "cosformer") else found[-1]
    torch.testing.assert_close(found[-1], wanted, rtol=1e-6, atol=1e-9)
    assert bool(found.isfinite().all())


@each_baseline
def test_gradients_are_finite(baseline: Baseline) -> None:
    *inputs, bounds = packed(torch.float64)
    q, k, v = leaves = [rows.clone().requires_grad_() for rows in inputs]
    baseline(q, k, v, bounds).square().sum().backward()  # type: ignore[no-untyped-call]
    for leaf in leaves:
        assert leaf.grad is not None
        assert bool(leaf.grad.isfinite().all())


@each_baseline
def test_a_sequence_does_not_see_its_neighbours(baseline: Baseline) -> None:
    q, k, v, bounds = packed()
    start, end = bounds.host_bounds()[3:5]
    found = baseline(q[start:end], k[start:end], v[start:end], sequences(end - start))
    torch.testing.assert_close(found, baseline(q, k, v, bounds)[start:end], rtol=1e-4, atol=1e-5)


@each_baseline
def test_no_rows(baseline: Baseline) -> None:
    empty = torch.zeros(0, HEADS, DIM)
    assert baseline(empty, empty, empty, sequences()).shape == empty.shape


@pytest.mark.parametrize(
    ("name", "kernel"),
    [
        ("elu", lambda q, k: (F.elu(q) + 1) @ (F.elu(k) + 1).mT),
        ("relu", lambda q, k: q.relu() @ k.relu().mT),
        ("quadratic", lambda q, k: q.square() @ k.square().mT),
        (
            "cosformer",
            lambda q, k: (
                (q.relu() @ k.relu().mT)
                * torch.cos(math.pi / 2 * (torch.arange(50)[:, None] - torch.arange(50)) / 50)
            ),
        ),
        ("softmax", lambda q, k: (q @ k.mT / math.sqrt(DIM)).exp()),
        ("lln", lambda q, k: (2 * q).exp() @ (2 * k).exp().mT),
    ],
)
def test_kernel_of_the_paper(name: str, kernel: object) -> None:
    assert callable(kernel)
    q, k, _, _ = packed(torch.float64)
    q, k = q[100:150], k[100:150]
    wanted = torch.stack([kernel(q[:, head], k[:, head]) for head in range(HEADS)])
    wanted = wanted / wanted.sum(-1, keepdim=True)
    torch.testing.assert_close(find_baseline(name).matrix(q, k), wanted)


def test_performer_estimates_softmax() -> None:
    """Without bias, so more features come nearer."""
    q, k, _, _ = packed(torch.float64, spread=0.4)
    q, k = q[100:200], k[100:200]
    wanted = find_baseline("softmax").matrix(q, k)
    errors = [
        float((Performer(num_features=count).matrix(q, k) - wanted).norm() / wanted.norm())
        for count in (64, 1024, 16_384)
    ]
    assert errors[0] > 1.5 * errors[1] > 3 * errors[2]
    assert errors[2] < 0.05


def test_orthogonal_directions() -> None:
    directions = orthogonal_directions(50, 32, 0)
    gram = directions[:32] @ directions[:32].mT
    assert float((gram - gram.diag().diag()).abs().max()) < 1e-10
    assert directions.shape == (50, 32)


@pytest.mark.parametrize("short", [Nystromformer(num_landmarks=64), Linformer(num_segments=64)])
def test_short_sequences_are_softmax(short: Baseline) -> None:
    q, k, v, _ = packed(torch.float64)
    bounds = sequences(40)
    wanted = find_baseline("softmax")(q[:40], k[:40], v[:40], bounds)
    torch.testing.assert_close(short(q[:40], k[:40], v[:40], bounds), wanted)


def test_pseudo_inverse() -> None:
    generator = torch.Generator().manual_seed(0)
    matrix = (3 * torch.eye(8) + torch.randn(4, 8, 8, generator=generator)).double().softmax(-1)
    product = matrix @ pseudo_inverse(matrix)
    torch.testing.assert_close(product, torch.eye(8).double().expand(4, 8, 8), rtol=0, atol=3e-2)


def test_unknown_baseline() -> None:
    with pytest.raises(InvalidInput, match="unknown attention 'reformer'"):
        find_baseline("reformer")
