"""The public operations on a CPU against the float64 reference."""

from __future__ import annotations

import math
from itertools import accumulate
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels.attention import (
    Gate,
    block_diagonal_attention,
    lln_attention,
    lln_diag_attention,
    lln_read,
    lln_state,
    merge_states,
    paper_moment_matching,
    reference,
    softmax_attention,
)

pytestmark = pytest.mark.usefixtures("poisoned_memory")

RAGGED: tuple[list[int], ...] = ([1], [63], [500], [5, 0, 130, 1, 64, 300], [0], [])
HEAD_DIMS = (16, 60, 128)


def bounds_of(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)


def random_qkv(rows: int, heads: int, dim: int, *, scale: float = 1.0) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(rows * 1000 + dim)
    q, k, v = (torch.randn(rows, heads, dim, generator=generator) for _ in range(3))
    return q * scale, k * scale, v


def assert_as_exact_as_plain(
    found: Tensor, plain: Tensor, truth: Tensor, *, sharpness: float
) -> None:
    """flash-attention's rule: at most twice the error of plain torch in the same dtype.

    On a few elements plain torch may be exact by luck, so there is a floor: scores are as large
    as `sharpness`, and rounding them moves a weight by that many eps.
    """
    assert torch.isfinite(found).all()
    if not found.numel():
        return
    error = (found - truth).abs().max().item()
    allowed = 2 * (plain - truth).abs().max().item()
    floor = 4 * sharpness * torch.finfo(found.dtype).eps
    assert error <= max(allowed, floor)


@pytest.mark.parametrize("sharpness", [1.0, 40.0], ids=["usual", "exp would overflow"])
@pytest.mark.parametrize("dim", HEAD_DIMS)
@pytest.mark.parametrize("lengths", RAGGED, ids=str)
def test_lln_diag(lengths: list[int], dim: int, sharpness: float) -> None:
    heads = 1 if sum(lengths) >= 500 else 2  # the dense reference is slow
    q, k, v = random_qkv(sum(lengths), heads, dim)
    arguments: dict[str, Any] = {
        "alpha": torch.tensor([1.5, 0.7])[:heads] * sharpness,
        "beta": torch.tensor([1.0, 1.3])[:heads] * sharpness,
        "mix": torch.tensor([0.2, 0.6])[:heads],
        "cu_seqlens": bounds_of(lengths),
        "num_sinks": (1, 1),
    }
    found = lln_diag_attention(q, k, v, **arguments)
    truth = reference.lln_diag_attention(q, k, v, **arguments)
    plain = reference.lln_diag_attention(q, k, v, **arguments, dtype=torch.float32)
    assert_as_exact_as_plain(found, plain, truth, sharpness=sharpness)


@pytest.mark.parametrize("scale", [1e2, 1e4, 1e15])
def test_no_finite_input_overflows(scale: float) -> None:
    q, k, v = random_qkv(200, 2, 32, scale=scale)
    out = lln_diag_attention(q, k, v, alpha=1.5, beta=1.0, num_sinks=(1, 1))
    assert torch.isfinite(out).all()
    assert out.abs().max() <= v.abs().max() * 1.001


@pytest.mark.parametrize("num_sinks", [0, 1, (1, 1), (0, 2), 70, (200, 200)])
@pytest.mark.parametrize("block_size", [16, 64, 512])
def test_sinks_are_seen_once_by_every_block(
    block_size: int, num_sinks: int | tuple[int, int]
) -> None:
    q, k, v = random_qkv(300, 2, 32)
    arguments: dict[str, Any] = {
        "cu_seqlens": bounds_of([3, 130, 0, 167]),
        "block_size": block_size,
        "num_sinks": num_sinks,
    }
    found = block_diagonal_attention(q, k, v, **arguments)
    truth = reference.block_diagonal_attention(q, k, v, **arguments)
    assert (found - truth).abs().max() < 2e-6


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 90), max_size=6),
    dim=st.sampled_from([16, 17, 48, 80]),
    heads=st.integers(1, 3),
    block_size=st.sampled_from([16, 48, 64]),
    sinks=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    mixed_by=st.sampled_from(["number", "token", "gate"]),
    with_maps=st.booleans(),
    scale=st.sampled_from([0.0, 1.0, 10.0]),
)
def test_any_shape(
    lengths: list[int],
    dim: int,
    heads: int,
    block_size: int,
    sinks: tuple[int, int],
    mixed_by: str,
    with_maps: bool,
    scale: float,
) -> None:
    rows = sum(lengths)
    q, k, v = random_qkv(rows, heads, dim, scale=scale)
    generator = torch.Generator().manual_seed(dim)
    maps = [
        (
            torch.randn(heads, dim, dim, generator=generator) / math.sqrt(dim),
            torch.randn(heads, dim, generator=generator),
        )
        for _ in range(2)
    ]
    mixes = {
        "number": 0.3,
        "token": torch.rand(rows, heads, generator=generator),
        "gate": Gate(
            torch.randn(heads, dim, generator=generator) / math.sqrt(dim),
            torch.randn(heads, generator=generator),
        ),
    }
    arguments: dict[str, Any] = {
        "alpha": torch.rand(len(lengths), heads, generator=generator) + 0.5,
        "beta": 1.1,
        "mix": mixes[mixed_by],
        "mix_scale": torch.rand(len(lengths), generator=generator),
        "cu_seqlens": bounds_of(lengths),
        "block_size": block_size,
        "num_sinks": sinks,
        "q_map": maps[0] if with_maps else None,
        "k_map": maps[1] if with_maps else None,
    }
    wide = [x.double() for x in (q, k, v)]
    truth = reference.lln_diag_attention(*wide, **arguments)
    assert lln_diag_attention(*wide, **arguments).sub(truth).abs().lt(1e-9).all()
    found = lln_diag_attention(q, k, v, **arguments)
    # A score's own rounding moves its weight by about eps * |score|.
    eps = torch.finfo(torch.float32).eps * (8 + 4 * scale**2)
    # Weighted means of v can be far smaller than what rounds on the way to them.
    assert (found - truth).abs().le(eps * v.abs().amax() if rows else 0).all()


@pytest.mark.parametrize("lengths", RAGGED, ids=str)
def test_parts_agree_with_their_references(lengths: list[int]) -> None:
    q, k, v = random_qkv(sum(lengths), 3, 32)
    cu_seqlens = bounds_of(lengths)
    pairs = [
        (softmax_attention(q, k, v, cu_seqlens=cu_seqlens), reference.softmax_attention),
        (
            lln_attention(q, k, v, alpha=1.5, beta=1.0, cu_seqlens=cu_seqlens),
            lambda *qkv, **rest: reference.lln_attention(*qkv, alpha=1.5, beta=1.0, **rest),
        ),
    ]
    for found, truth in pairs:
        expected = truth(q, k, v, cu_seqlens=cu_seqlens)
        assert found.shape == expected.shape
        assert (found - expected).abs().lt(3e-6).all()


@pytest.mark.parametrize("bias_only", [True, False])
def test_maps_change_the_lln_branch_alone(bias_only: bool) -> None:
    q, k, v = random_qkv(300, 2, 32)
    bias = torch.linspace(-1, 1, 64).view(2, 32)
    weight = None if bias_only else torch.eye(32).expand(2, 32, 32) * 0.5
    arguments: dict[str, Any] = {"alpha": 1.0, "beta": 1.2, "q_map": (weight, bias)}
    arguments["k_map"] = (weight, bias)
    found = lln_attention(q, k, v, **arguments)
    assert (found - reference.lln_attention(q, k, v, **arguments)).abs().max() < 3e-6
    diag_only = lln_diag_attention(q, k, v, mix=0.0, **arguments)
    assert (diag_only - block_diagonal_attention(q, k, v)).abs().max() < 1e-6


def test_states_of_two_pieces_merge_into_the_whole() -> None:
    q, k, v = random_qkv(2500, 2, 32, scale=20.0)
    whole = lln_state(k, v, beta=1.0)
    halves = [lln_state(k[part], v[part], beta=1.0) for part in (slice(0, 700), slice(700, None))]
    merged = merge_states(*halves)
    assert (merged.log_mass - whole.log_mass).abs().max() < 1e-4
    assert (merged.value - whole.value).abs().max() < 1e-4
    read = lln_read(q, merged, alpha=0.1)
    assert (read - lln_attention(q, k, v, alpha=0.1, beta=1.0)).abs().max() < 1e-4


def test_an_empty_piece_adds_nothing() -> None:
    _, k, v = random_qkv(90, 2, 16)
    state = lln_state(k, v, beta=1.0)
    empty = lln_state(k[:0], v[:0], beta=1.0)
    assert torch.isneginf(empty.log_mass).all()
    assert (empty.value == 0).all()
    for merged in (merge_states(state, empty), merge_states(empty, state)):
        torch.testing.assert_close(merged.value, state.value)
    assert (merge_states(empty, empty).value == 0).all()


def test_a_sequence_does_not_depend_on_its_neighbours() -> None:
    q, k, v = random_qkv(700, 4, 32)
    arguments: dict[str, Any] = {"alpha": 1.5, "beta": 1.0, "num_sinks": (1, 1)}
    alone = lln_diag_attention(q[100:363], k[100:363], v[100:363], **arguments)
    together = lln_diag_attention(q, k, v, cu_seqlens=bounds_of([100, 263, 337]), **arguments)
    torch.testing.assert_close(together[100:363], alone, rtol=0, atol=1e-6)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("broken", ["q", "k", "v"])
def test_what_is_not_finite_shows_in_its_sequence_alone(broken: str, value: float) -> None:
    rows: dict[str, Any] = dict(zip("qkv", random_qkv(300, 2, 32), strict=True))
    arguments: dict[str, Any] = {
        "alpha": 1.0,
        "beta": 1.0,
        "cu_seqlens": bounds_of([100, 100, 100]),
        "num_sinks": 1,
    }
    clean = lln_diag_attention(**rows, **arguments)
    rows[broken][150, 1, 7] = value
    out = lln_diag_attention(**rows, **arguments)
    # A query is read in its own row alone; a key or a value reaches all rows of its sequence.
    hurt = slice(150, 151) if broken == "q" else slice(100, 200)
    assert out[hurt, 1].isnan().all()
    assert torch.equal(out[:, 0], clean[:, 0])
    for others in (slice(0, 100), slice(200, 300)):
        assert torch.equal(out[others], clean[others])


def test_repeats_bitwise() -> None:
    q, k, v = random_qkv(900, 4, 32)
    cu_seqlens = bounds_of([400, 77, 423])
    first, second = (
        lln_diag_attention(q, k, v, alpha=1.5, beta=1.0, cu_seqlens=cu_seqlens) for _ in range(2)
    )
    assert torch.equal(first, second)


@given(
    lengths=st.lists(st.integers(1, 700), min_size=2, max_size=7),
    heads_and_dim=st.sampled_from([(12, 32), (3, 20), (4, 64)]),
    block_size=st.sampled_from([64, 512]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
@settings(max_examples=25, deadline=None)
def test_a_sequence_does_not_depend_on_its_neighbours_to_the_last_bit(
    lengths: list[int], heads_and_dim: tuple[int, int], block_size: int, dtype: torch.dtype
) -> None:
    drawn = (x.to(dtype) for x in random_qkv(sum(lengths), *heads_and_dim))
    rows: dict[str, Any] = dict(zip("qkv", drawn, strict=True))
    arguments: dict[str, Any] = {"alpha": 1.7, "beta": 1.1}
    blocks: dict[str, Any] = {"block_size": block_size, "num_sinks": (2, 1)}
    bounds = bounds_of(lengths)
    at = len(lengths) // 2
    own = slice(int(bounds[at]), int(bounds[at + 1]))
    alone = {name: x[own].clone() for name, x in rows.items()}
    for attend, parameters in (
        (softmax_attention, {}),
        (block_diagonal_attention, blocks),
        (lln_attention, arguments),
        (lln_diag_attention, arguments | blocks),
    ):
        together = attend(**rows, **parameters, cu_seqlens=bounds)
        assert torch.equal(together[own], attend(**alone, **parameters))


@pytest.mark.parametrize("num_sinks", [0, (1, 1)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_dtypes_are_computed_in_float32_or_round_no_more(
    dtype: torch.dtype, num_sinks: int | tuple[int, int]
) -> None:
    q, k, v = (x.to(dtype) for x in random_qkv(300, 2, 32))
    found = lln_diag_attention(q, k, v, alpha=1.5, beta=1.0, num_sinks=num_sinks)
    assert found.dtype == dtype
    truth = reference.lln_diag_attention(q, k, v, alpha=1.5, beta=1.0, num_sinks=num_sinks)
    assert (found - truth).abs().max() <= torch.finfo(dtype).eps * truth.abs().max()


def test_gradients_are_those_of_the_reference() -> None:
    lengths = [40, 0, 21]
    q, k, v = (x.double().requires_grad_() for x in random_qkv(61, 2, 16))
    alpha, beta, mix = (
        torch.full(shape, value, dtype=torch.float64, requires_grad=True)
        for shape, value in (((3, 2), 1.5), ((2,), 0.9), ((61, 2), 0.4))
    )
    weight = torch.eye(16, dtype=torch.float64).repeat(2, 1, 1).requires_grad_()
    bias = torch.linspace(-1, 1, 32, dtype=torch.float64).view(2, 16).requires_grad_()

    def run(*tensors: Tensor) -> Tensor:
        q, k, v, alpha, beta, mix, weight, bias = tensors
        out = lln_diag_attention(
            *(q, k, v),
            alpha=alpha,
            beta=beta,
            mix=mix,
            cu_seqlens=bounds_of(lengths),
            block_size=16,
            num_sinks=(1, 1),
            q_map=(weight, bias),
            k_map=(weight, bias),
        )
        assert isinstance(out, Tensor)
        return out

    inputs = (q, k, v, alpha, beta, mix, weight, bias)
    assert torch.autograd.gradcheck(run, inputs, fast_mode=True)


def test_moment_matching_is_the_papers_equation_10() -> None:
    q, k, _ = random_qkv(2000, 4, 64)
    alpha, beta = paper_moment_matching(2 * q, k)
    sigma_q, sigma_k = (2 * q).std().item(), k.std().item()
    feature_variance = (alpha.item() * sigma_q) ** 2 + (beta.item() * sigma_k) ** 2
    assert alpha.item() * sigma_q == pytest.approx(beta.item() * sigma_k)
    matched = 0.14855178144710912 * feature_variance - 0.35487039130661086
    assert matched == pytest.approx((sigma_q * sigma_k) ** 2)
