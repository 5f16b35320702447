"""The Triton backward kernels against the float64 reference's own gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.attention import Gate, custom_op, lln_diag_attention
from tests.kernels.triton_cases import (
    OF_THREE_HEADS,
    Case,
    Inputs,
    expect_lln_diag,
    make_inputs,
    only,
    plain_lln_diag,
)

forward = pytest.importorskip("kernels.attention.gpu.forward")
backward = pytest.importorskip("kernels.attention.gpu.backward")

pytestmark = [
    pytest.mark.usefixtures("poisoned_memory"),
    # How the interpreter of Triton 3.6 reads a loop's bounds.
    pytest.mark.filterwarnings("ignore:Conversion of an array with ndim:DeprecationWarning"),
]

Gradients = dict[str, Tensor]
Run = Callable[[Inputs, Case], Tensor]


def output_gradient(inputs: Inputs) -> Tensor:
    generator = torch.Generator().manual_seed(7)
    return torch.randn(inputs.q.shape, generator=generator).to(inputs.q)


def run_backward(inputs: Inputs, case: Case, grad: Tensor) -> Gradients:
    """Forward, then backward with the state that the forward left."""
    branches = {"block_size": case.block_size, "num_sinks": case.sinks}
    # Of gates and factors the kernels are given what they come to: mixes.
    given = {name: x for name, x in vars(inputs).items() if name != "mix_scale"}
    _, state = forward.attention_forward(**given, **branches, keep_state=True)
    found = backward.attention_backward(grad, **given, **branches, state=state)
    gradients = {name: value for name, value in found._asdict().items() if value is not None}
    if not case.mix_by_token:
        gradients["mix"] = gradients["mix"].sum(0)
    return gradients


def gradients_of(
    run: Run, inputs: Inputs, case: Case, grad: Tensor, dtype: torch.dtype
) -> Gradients:
    """By autograd, with everything that rows are made of in one dtype."""
    leaves: Gradients = {}

    def leaf(name: str, value: Tensor) -> Tensor:
        leaves[name] = value.detach().to(dtype).requires_grad_()
        return leaves[name]

    def affine(name: str) -> tuple[Tensor | None, Tensor] | None:
        given = getattr(inputs, f"{name}_map")
        if given is None:
            return None
        weight, bias = given
        mapped = None if weight is None else leaf(f"{name}_weight", weight)
        return mapped, leaf(f"{name}_bias", bias)

    def mix() -> Tensor | Gate:
        if isinstance(inputs.mix, Gate):
            return Gate(leaf("gate", inputs.mix.weight), leaf("gate's bias", inputs.mix.bias))
        return leaf("mix", inputs.mix)

    names = ("q", "k", "v", "alpha", "beta")
    traced = replace(
        inputs,
        **{name: leaf(name, getattr(inputs, name)) for name in names},
        mix=mix(),
        q_map=affine("q"),
        k_map=affine("k"),
    )
    found = torch.autograd.grad(run(traced, case), list(leaves.values()), grad.to(dtype))
    return dict(zip(leaves, found, strict=True))


def _largest(x: Tensor) -> float:
    return float(x.abs().max())


def check_backward(case: Case) -> None:
    """At most three times the error of plain torch, plus a few last places of float32.

    A gradient that cancels is as exact as the largest beside it, and a score's own rounding moves
    its weight by eps times the score. Those summed over all rows share one yardstick, relative to
    their size: of a few numbers only, plain torch may be right by luck.
    """
    inputs = make_inputs(case)
    grad = output_gradient(inputs)
    found = run_backward(inputs, case, grad)
    truth = gradients_of(expect_lln_diag, inputs, case, grad, torch.float64)
    plain = gradients_of(plain_lln_diag, inputs, case, grad, case.dtype)
    assert found.keys() == truth.keys()
    largest = max(float(gradient.abs().max()) for gradient in truth.values())
    floor = 16 * torch.finfo(torch.float32).eps * largest * max(1.0, case.scale)
    off = {name: _largest(plain[name].double() - expected) for name, expected in truth.items()}
    summed = [name for name in truth if name not in ("q", "k", "v")]
    relative = max(off[name] / max(_largest(truth[name]), floor) for name in summed)
    for name, expected in truth.items():
        yardstick = max(off[name], relative * _largest(expected)) if name in summed else off[name]
        allowed = 3 * yardstick + floor
        error = _largest(found[name].double() - expected)
        assert error <= allowed, f"{name}: {error:.3g} where {allowed:.3g} is allowed"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("head_dim", [60, 128])
def test_ragged_batches(head_dim: int, dtype: torch.dtype) -> None:
    check_backward(
        Case(
            lengths=(33, 0, 40),
            head_dim=head_dim,
            dtype=dtype,
            sinks=(1, 1),
            block_size=32,
        )
    )


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(Case(lengths=(1,)), id="one token"),
        pytest.param(
            Case(lengths=(70,), block_size=16, mix_by_token=True), id="many blocks a tile"
        ),
        pytest.param(Case(lengths=(100, 3), block_size=80), id="blocks of uneven tiles"),
        pytest.param(
            Case(lengths=(150,), block_size=128, sinks=(3, 2), mix_by_token=True),
            id="sinks inside and outside blocks of several tiles",
        ),
        pytest.param(Case(lengths=(5, 1, 0, 2), sinks=(3, 4)), id="sinks that overlap"),
        pytest.param(Case(lengths=(70,), sinks=(20, 0), block_size=16), id="many sinks"),
        pytest.param(Case(lengths=(20, 0, 9), num_heads=2, weights=True, biases=True), id="maps"),
        pytest.param(Case(lengths=(33,), biases=True), id="biases alone"),
        pytest.param(Case(lengths=(9,), head_dim=200, dtype=torch.bfloat16), id="200"),
        pytest.param(
            Case(lengths=(9,), head_dim=48, weights=True, biases=True),
            id="48 mapped, channels in steps",
        ),
        pytest.param(
            Case(lengths=(20,), weights=True, biases=True, dtype=torch.bfloat16),
            id="bfloat16 maps",
        ),
    ],
)
def test_every_form(case: Case) -> None:
    check_backward(case)


@pytest.mark.long
@pytest.mark.usefixtures("short_pieces")
@pytest.mark.parametrize("case", OF_THREE_HEADS, ids=["ragged", "maps"])
def test_several_heads_of_several_pieces(case: Case) -> None:
    check_backward(case)


@pytest.mark.usefixtures("short_pieces")
def test_sequences_of_several_pieces() -> None:
    check_backward(Case(lengths=(150, 20), weights=True, biases=True))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy remarks on what overflows
@pytest.mark.parametrize(
    ("dtype", "scale"), [(torch.float32, 60.0), (torch.bfloat16, 60.0), (torch.float16, 15.0)]
)
def test_scores_far_beyond_what_exp_can_hold(dtype: torch.dtype, scale: float) -> None:
    check_backward(Case(lengths=(50,), scale=scale, dtype=dtype))


def test_each_branch_alone() -> None:
    case = Case(lengths=(40, 21))
    inputs = make_inputs(case)
    grad = output_gradient(inputs)
    rows = {name: getattr(inputs, name) for name in ("q", "k", "v", "cu_seqlens")}
    scales = {"alpha": inputs.alpha, "beta": inputs.beta}
    _, state = forward.attention_forward(**rows, **scales, keep_state=True)
    lln = backward.attention_backward(grad, **rows, **scales, state=state)
    diag = backward.attention_backward(grad, **rows, block_size=case.block_size)
    for share, found in ((1.0, lln), (0.0, diag)):
        whole = replace(inputs, mix=torch.tensor([share]))
        expected = gradients_of(expect_lln_diag, whole, case, grad, torch.float64)
        for name in ("q", "k", "v"):
            difference = getattr(found, name).double() - expected[name]
            assert float(difference.abs().max()) <= 2e-6 * float(expected[name].abs().max())


@pytest.mark.parametrize("in_triton", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_a_gates_gradient(
    in_triton: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case((40, 0, 140), num_heads=2, head_dim=20, sinks=(1, 1), gate=True, dtype=dtype)
    inputs = make_inputs(case)
    grad = output_gradient(inputs)

    def public(given: Inputs, case: Case) -> Tensor:
        sizes: dict[str, Any] = {"block_size": case.block_size, "num_sinks": case.sinks}
        return lln_diag_attention(**vars(given), **sizes)

    truth = gradients_of(expect_lln_diag, inputs, case, grad, torch.float64)
    plain = gradients_of(plain_lln_diag, inputs, case, grad, dtype)
    monkeypatch.setattr(custom_op, "runs_in_triton", lambda _: in_triton)
    found = gradients_of(public, inputs, case, grad, dtype)
    assert {"gate", "gate's bias"} < found.keys()
    floor = 16 * torch.finfo(torch.float32).eps * max(map(_largest, truth.values()))
    for name, expected in truth.items():
        allowed = 3 * _largest(plain[name].double() - expected) + floor
        assert _largest(found[name].double() - expected) <= allowed, name


def test_a_loss_scaled_to_float16s_end_does_not_overflow() -> None:
    case = Case(lengths=(300,), dtype=torch.float16, block_size=16)
    inputs = make_inputs(case)
    grad = torch.full_like(inputs.q, 6e4 / 32)
    for name, gradient in run_backward(inputs, case, grad).items():
        assert bool(gradient.isfinite().all()), name


@pytest.mark.parametrize("lengths", [(), (0,), (0, 0)])
def test_nothing_to_do(lengths: tuple[int, ...]) -> None:
    case = Case(lengths=lengths, num_heads=2, sinks=(1, 1), weights=True, biases=True)
    inputs = make_inputs(case)
    found = run_backward(inputs, case, output_gradient(inputs))
    assert found["q"].shape == (0, 2, 32)
    assert all(bool((gradient == 0).all()) for gradient in found.values())


@pytest.mark.usefixtures("short_pieces")
def test_a_sequence_is_the_same_whatever_shares_its_batch() -> None:
    case = Case(
        lengths=(40, 0, 130), head_dim=16, sinks=(1, 1), mix_by_token=True, dtype=torch.bfloat16
    )
    inputs = make_inputs(case)
    grad = output_gradient(inputs)
    together = run_backward(inputs, case, grad)
    again = run_backward(inputs, case, grad)
    assert all(torch.equal(together[name], again[name]) for name in together)
    for index, rows in enumerate(inputs.bounds):
        length = rows.stop - rows.start
        alone = run_backward(only(inputs, index), replace(case, lengths=(length,)), grad[rows])
        for name in ("q", "k", "v", "mix"):
            assert torch.equal(together[name][rows], alone[name]), name
        for name in ("alpha", "beta"):
            assert torch.equal(together[name][index], alone[name][0]), name


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy remarks on NaN in the interpreter
def test_nan_stays_in_its_sequence() -> None:
    case = Case(lengths=(40, 50, 30), sinks=(1, 1))
    inputs = make_inputs(case)
    grad = output_gradient(inputs)
    poisoned = inputs.k.clone()
    poisoned[45] = math.nan
    clean = run_backward(inputs, case, grad)
    found = run_backward(replace(inputs, k=poisoned), case, grad)
    for name in ("q", "k", "v"):
        assert bool(found[name][40:90].isnan().all()), name
        for rows in (slice(0, 40), slice(90, 120)):
            assert torch.equal(found[name][rows], clean[name][rows]), name


def test_gradients_of_expanded_and_sliced_rows() -> None:
    case = Case(lengths=(33,), num_heads=2)
    inputs = make_inputs(case)
    fused: Sequence[Tensor] = torch.stack([inputs.q, inputs.k, inputs.v], dim=1).unbind(1)
    grad = torch.ones(()).to(inputs.q).expand(inputs.q.shape)
    sliced = run_backward(replace(inputs, q=fused[0], k=fused[1], v=fused[2]), case, grad)
    whole = run_backward(inputs, case, grad.contiguous())
    assert all(torch.equal(sliced[name], whole[name]) for name in whole)
