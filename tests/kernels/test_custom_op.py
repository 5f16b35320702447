"""Attention as an operator of torch's library: traced, compiled, differentiated."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from kernels.attention import (
    ArgumentError,
    block_diagonal_attention,
    lln_attention,
    lln_diag_attention,
    softmax_attention,
)
from kernels.attention.custom_op import Operands

HEADS, DIM = 2, 16
BOUNDS = torch.tensor([0, 40, 40, 61], dtype=torch.int32)
Attend = Callable[..., Tensor]


def operands(*, lln: bool, diag: bool, maps: bool) -> Operands:
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).requires_grad_()

    rows, heads, dim = 61, HEADS, DIM
    return Operands(
        q=random(rows, heads, dim),
        k=random(rows, heads, dim),
        v=random(rows, heads, dim),
        alpha=random(3, heads) if lln else None,
        beta=random(3, heads) if lln else None,
        mix=random(rows, heads) if lln and diag else None,
        q_weight=random(heads, dim, dim) if maps else None,
        q_bias=random(heads, dim) if maps else None,
        k_bias=random(heads, dim) if maps else None,
        cu_seqlens=BOUNDS,
        block_size=16 if diag else None,
        num_sinks=(1, 1) if diag else (0, 0),
    )


BRANCHES = [
    pytest.param({"lln": True, "diag": True, "maps": True}, id="both"),
    pytest.param({"lln": True, "diag": False, "maps": False}, id="LLN"),
    pytest.param({"lln": False, "diag": True, "maps": False}, id="Diag"),
    pytest.param({"lln": False, "diag": False, "maps": False}, id="softmax"),
]


@pytest.mark.parametrize("branches", BRANCHES)
def test_operators_keep_their_promises_to_torch(branches: dict[str, bool]) -> None:
    given = operands(**branches)
    torch.library.opcheck(torch.ops.lln.attention.default, (*given, True))


@pytest.mark.parametrize("branches", BRANCHES)
def test_fake_gradients_have_the_shapes_of_real_ones(branches: dict[str, bool]) -> None:
    given = [x.detach() if isinstance(x, Tensor) else x for x in operands(**branches)]
    out, *state = torch.ops.lln.attention(*given, True)
    arguments = (torch.ones_like(out), *given, *state)
    with FakeTensorMode() as mode:
        faked = [mode.from_tensor(x) if isinstance(x, Tensor) else x for x in arguments]
        fake = torch.ops.lln.attention_backward(*faked)
    real = torch.ops.lln.attention_backward(*arguments)
    assert [shape_of(x) for x in fake] == [shape_of(x) for x in real]


def shape_of(x: Tensor) -> tuple[object, ...]:
    return tuple(x.shape), x.stride(), x.dtype


@pytest.mark.parametrize("branches", BRANCHES)
def test_the_operators_gradient_is_that_of_its_definition(branches: dict[str, bool]) -> None:
    given = operands(**branches)
    inputs = [x for x in given.differentiable if x is not None]
    wide = iter(x.detach().double().requires_grad_() for x in inputs)
    leaves = [None if x is None else next(wide) for x in given.differentiable]
    present = [x for x in leaves if x is not None]

    def run(*tensors: Tensor) -> Tensor:
        some = iter(tensors)
        filled = [None if x is None else next(some) for x in leaves]
        out: Tensor = torch.ops.lln.attention(*filled, *given[10:], True)[0]
        return out

    assert torch.autograd.gradcheck(run, present, fast_mode=True)


def both(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor) -> Tensor:
    return lln_diag_attention(
        q, k, v, alpha=1.5, beta=1.0, cu_seqlens=cu_seqlens, block_size=16, num_sinks=(1, 1)
    )


def lln_alone(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor) -> Tensor:
    return lln_attention(q, k, v, alpha=1.5, beta=1.0, cu_seqlens=cu_seqlens)


def diag_alone(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor) -> Tensor:
    return block_diagonal_attention(q, k, v, cu_seqlens=cu_seqlens, block_size=16)


def softmax(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor) -> Tensor:
    return softmax_attention(q, k, v, cu_seqlens=cu_seqlens)


@pytest.mark.parametrize("attend", [both, lln_alone, diag_alone, softmax])
def test_compiles_in_one_graph(attend: Attend) -> None:
    def block(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor) -> Tensor:
        return 2 * attend(q, k, v, cu_seqlens).relu()

    given = operands(lln=True, diag=True, maps=False)
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    for run in (block, compiled):
        for leaf in given[:3]:
            leaf.grad = None
        run(*given[:3], BOUNDS).sum().backward()  # type: ignore[no-untyped-call]
        grads = [leaf.grad for leaf in given[:3]]
        if run is block:
            expected, wanted = block(*given[:3], BOUNDS), grads
    torch.testing.assert_close(compiled(*given[:3], BOUNDS), expected)
    for mine, theirs in zip(grads, wanted, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_one_sequence_of_any_length_compiles_once() -> None:
    torch.compiler.reset()
    counter = torch._dynamo.testing.CompileCounter()
    run = torch.compile(
        lambda q, k, v: lln_diag_attention(q, k, v, alpha=1.0, beta=1.0),
        fullgraph=True,
        dynamic=True,
        backend=counter,
    )
    for length in (40, 63, 200):
        q, k, v = (torch.randn(length, HEADS, DIM) for _ in range(3))
        torch.testing.assert_close(run(q, k, v), lln_diag_attention(q, k, v, alpha=1.0, beta=1.0))
    assert counter.frame_count == 1


def test_values_are_checked_although_tracing_cannot_see_them() -> None:
    given = operands(lln=True, diag=True, maps=False)
    compiled = torch.compile(both, fullgraph=True, backend="aot_eager")
    falling = torch.tensor([0, 50, 40, 61], dtype=torch.int32)
    with torch.no_grad(), pytest.raises(ArgumentError, match="falls from 50 to 40"):
        compiled(*given[:3], falling)
