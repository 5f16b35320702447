"""The Triton kernel of softmax over whole sequences, and its gradient, against float64."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernels.attention import reference
from kernels.attention.gpu import tiles
from tests.kernels.triton_cases import (
    DTYPES,
    Case,
    Inputs,
    assert_as_exact,
    largest_error,
    make_inputs,
    only,
    plain_diag,
)

forward = pytest.importorskip("kernels.attention.gpu.forward")
gradients = pytest.importorskip("kernels.attention.gpu.backward")

pytestmark = [
    pytest.mark.usefixtures("poisoned_memory"),
    # How the interpreter of Triton 3.6 reads a loop's bounds.
    pytest.mark.filterwarnings("ignore:Conversion of an array with ndim:DeprecationWarning"),
]


def softmax(inputs: Inputs) -> Tensor:
    out: Tensor = forward.attention_forward(
        inputs.q, inputs.k, inputs.v, cu_seqlens=inputs.cu_seqlens
    )[0]
    return out


def truth_of(inputs: Inputs) -> Tensor:
    return reference.softmax_attention(inputs.q, inputs.k, inputs.v, cu_seqlens=inputs.cu_seqlens)


def plain_softmax(inputs: Inputs, case: Case) -> Tensor:
    """Plain torch operations in the inputs' own dtype: each sequence is one block."""
    longest = replace(case, block_size=tiles.WHOLE)
    q, k, v = inputs.q, inputs.k, inputs.v
    each = [plain_diag(q[rows], k[rows], v[rows], longest) for rows in inputs.bounds]
    return torch.cat(each) if each else torch.empty_like(inputs.v)


def check(case: Case) -> None:
    inputs = make_inputs(case)
    assert_as_exact(softmax(inputs), plain_softmax(inputs, case), truth_of(inputs))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head_dim", [16, 60, 128])
def test_ragged_batches(head_dim: int, dtype: torch.dtype) -> None:
    check(Case(head_dim=head_dim, dtype=dtype))


@pytest.mark.parametrize("length", [1, 31, 32, 33, 500])
def test_odd_lengths(length: int) -> None:
    check(Case(lengths=(length,)))


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(Case(lengths=(200, 129), dtype=torch.bfloat16), id="several tiles of queries"),
        pytest.param(Case(num_heads=3, lengths=(5, 1, 0, 2)), id="heads"),
        pytest.param(Case(lengths=(40, 17), head_dim=200), id="200"),
        pytest.param(Case(lengths=(40,), head_dim=256, dtype=torch.float16), id="256"),
        pytest.param(Case(lengths=(*[0] * 130, 5, 3), head_dim=16), id="many sequences"),
    ],
)
def test_every_form(case: Case) -> None:
    check(case)


@pytest.mark.parametrize(
    ("dtype", "scale"), [(torch.float32, 60.0), (torch.bfloat16, 60.0), (torch.float16, 15.0)]
)
def test_scores_far_beyond_what_exp_can_hold(dtype: torch.dtype, scale: float) -> None:
    case = Case(scale=scale, dtype=dtype)
    inputs = make_inputs(case)
    scores = torch.einsum("ihd,jhd->hij", inputs.q.double(), inputs.k.double())
    assert float(scores.max()) / math.sqrt(case.head_dim) > 88
    check(case)


@pytest.mark.parametrize("lengths", [(), (0,), (0, 0)])
def test_nothing_to_do(lengths: tuple[int, ...]) -> None:
    assert softmax(make_inputs(Case(lengths=lengths, num_heads=2))).shape == (0, 2, 32)


def test_slices_of_one_projection() -> None:
    inputs = make_inputs(Case(num_heads=2))
    q, k, v = torch.stack([inputs.q, inputs.k, inputs.v], dim=1).unbind(1)
    assert not q.is_contiguous()
    assert torch.equal(softmax(replace(inputs, q=q, k=k, v=v)), softmax(inputs))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_sequence_is_the_same_whatever_shares_its_batch(dtype: torch.dtype) -> None:
    inputs = make_inputs(Case(lengths=(70, 0, 150, 33), head_dim=16, dtype=dtype))
    together = softmax(inputs)
    assert torch.equal(together, softmax(inputs))
    for index, rows in enumerate(inputs.bounds):
        assert torch.equal(together[rows], softmax(only(inputs, index)))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy remarks on NaN in the interpreter
@pytest.mark.parametrize("broken", ["q", "k", "v"])
def test_nan_stays_in_its_sequence(broken: str) -> None:
    inputs = make_inputs(Case(lengths=(40, 70, 50)))
    clean = softmax(inputs)
    poisoned = getattr(inputs, broken).clone()
    poisoned[45, 0, 7] = math.nan
    found = softmax(replace(inputs, **{broken: poisoned}))
    first, second, third = inputs.bounds
    assert torch.equal(found[first], clean[first])
    assert torch.equal(found[third], clean[third])
    hurt = {"q": found[45], "k": found[second], "v": found[second][:, :, 7]}[broken]
    assert bool(hurt.isnan().all())


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(Case(lengths=(63, 0, 100)), id="ragged"),
        pytest.param(Case(lengths=(40,), head_dim=60, dtype=torch.bfloat16), id="60, bfloat16"),
    ],
)
def test_gradients(case: Case) -> None:
    """The backward of Diag, of blocks that no sequence fills."""
    inputs = make_inputs(case)
    grad = make_inputs(case, seed=1).v
    rows = (inputs.q, inputs.k, inputs.v)
    found = gradients.attention_backward(grad, *rows, cu_seqlens=inputs.cu_seqlens)
    plain_leaves = [x.detach().requires_grad_() for x in rows]
    plain = plain_gradients(inputs, case, plain_leaves, grad)
    leaves = [x.detach().double().requires_grad_() for x in rows]
    out = reference.softmax_attention(*leaves, cu_seqlens=inputs.cu_seqlens)
    truth = torch.autograd.grad(out, leaves, grad.double())
    for mine, theirs, exact in zip(found[:3], plain, truth, strict=True):
        floor = 8 * torch.finfo(torch.float32).eps * float(exact.abs().max())
        assert largest_error(mine, exact) <= 3 * largest_error(theirs, exact) + floor


def plain_gradients(
    inputs: Inputs, case: Case, leaves: list[Tensor], grad: Tensor
) -> tuple[Tensor, ...]:
    q, k, v = leaves
    out = plain_softmax(replace(inputs, q=q, k=k, v=v), case)
    return torch.autograd.grad(out, leaves, grad)
