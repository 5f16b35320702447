"""Attention as an operator of torch's library: what torch.compile and CUDA graphs see.

Tracing does not look inside: fake tensors give the shapes, and the gradient is an operator too.
Absent arguments choose the branches: without alpha there is no LLN, without a block size no Diag,
and without either softmax over whole sequences. Values are checked inside the operator, because
tracing sees none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernels.attention import arguments, cpu
from kernels.attention.arguments import AffineMap, Sinks
from kernels.attention.block_softmax import block_softmax
from kernels.attention.packed_sequences import PackedSequences, check_cu_seqlens
from kernels.attention.state import LLNState, empty_state

_OPERANDS = (
    "Tensor q, Tensor k, Tensor v, Tensor? alpha, Tensor? beta, Tensor? mix, "
    "Tensor? q_weight, Tensor? q_bias, Tensor? k_weight, Tensor? k_bias, "
    "Tensor? cu_seqlens, int? block_size, int[] num_sinks, int? shortest, int? longest"
)
_NUM_DIFFERENTIABLE = 10
_DEVICES = ("cpu", "cuda")
HAS_TRITON = find_spec("triton") is not None
"""A constant, since tracing cannot call what looks for it."""
_AS_IT_IS = contextlib.nullcontext()
_ORDINARY = (Tensor, torch.nn.Parameter)
_WIDEST_FLOAT32_HEAD = 128
_SHARED_BYTES_OF_WIDER = 147_456
"""Shared memory of the backward for float32 heads above 128, found by compiling it."""

torch.library.define(
    "lln::attention", f"({_OPERANDS}, bool keep_state) -> (Tensor, Tensor, Tensor)"
)
torch.library.define(
    "lln::attention_backward",
    f"(Tensor grad, {_OPERANDS}, Tensor log_mass, Tensor value) -> Tensor[]",
)


class Operands(NamedTuple):
    """The operators' arguments, by their names in the schema."""

    q: Tensor
    k: Tensor
    v: Tensor
    alpha: Tensor | None = None  # [B, H]
    beta: Tensor | None = None  # [B, H]
    mix: Tensor | None = None  # [H] or [T, H]; None where there is one branch
    q_weight: Tensor | None = None  # [H, D, D]
    q_bias: Tensor | None = None  # [H, D]
    k_weight: Tensor | None = None
    k_bias: Tensor | None = None
    cu_seqlens: Tensor | None = None  # int32 [B + 1]; None for one sequence
    block_size: int | None = None
    num_sinks: Sequence[int] = (0, 0)
    shortest: int | None = None  # no sequence has fewer tokens; None where that is not known
    longest: int | None = None  # no sequence has more; None where that is not known

    @property
    def differentiable(self) -> tuple[Tensor | None, ...]:
        tensors: tuple[Any, ...] = self[:_NUM_DIFFERENTIABLE]
        return tensors

    @property
    def packed(self) -> PackedSequences:
        return check_cu_seqlens(self.cu_seqlens, self.q)

    @property
    def branches(self) -> dict[str, Any]:
        """What the launchers take besides the rows."""
        return {
            "alpha": self.alpha,
            "beta": self.beta,
            "mix": self.mix,
            "cu_seqlens": self.packed.cu_seqlens,
            "block_size": self.block_size,
            "num_sinks": tuple(self.num_sinks),
            "q_map": self.q_map,
            "k_map": self.k_map,
        }

    def of_sequences(self, count: int) -> Operands:
        """With alpha and beta by sequence."""
        if self.alpha is None or self.beta is None:
            return self
        alpha, beta = (x.expand(count, self.q.shape[1]) for x in (self.alpha, self.beta))
        return self._replace(alpha=alpha, beta=beta)

    @property
    def q_map(self) -> AffineMap | None:
        return None if self.q_bias is None else AffineMap(self.q_weight, self.q_bias)

    @property
    def k_map(self) -> AffineMap | None:
        return None if self.k_bias is None else AffineMap(self.k_weight, self.k_bias)


def attend(operands: Operands) -> Tensor:
    """Through the operator, which keeps the state where a gradient will need it."""
    keep_state = needs_gradient(*operands.differentiable)
    out: Tensor = torch.ops.lln.attention(*operands, keep_state)[0]
    return out


def is_untraced(rows: Tensor) -> bool:
    """Whether this is an ordinary tensor, and no mode of torch watches its operations."""
    return (
        type(rows) in _ORDINARY
        and not torch.compiler.is_compiling()
        and not torch._C._len_torch_dispatch_stack()
    )


def launches_at_once(rows: Tensor) -> bool:
    """Whether kernels are launched without the operator, whatever the other arguments are."""
    return runs_in_triton(rows) and is_untraced(rows) and not torch.is_grad_enabled()


def attend_in_torch(operands: Operands, packed: PackedSequences) -> Tensor:
    """Attention in torch operations, differentiable as they are."""
    with without_autocast(operands.q):
        return _branches_in_torch(operands, packed).to(operands.q.dtype)


def _branches_in_torch(operands: Operands, packed: PackedSequences) -> Tensor:
    q, k, v, alpha, beta, mix = operands[:6]
    sinks = Sinks(*operands.num_sinks)
    if alpha is None or beta is None:
        size = operands.block_size
        return block_softmax(q, k, v, packed=packed, block_size=size, sinks=sinks)
    if operands.block_size is None:
        state = cpu.lln_state(k, v, beta=beta, packed=packed, k_map=operands.k_map)
        return cpu.lln_read(q, state, alpha=alpha, packed=packed, q_map=operands.q_map)
    assert mix is not None, "two branches have a mix"
    return cpu.lln_diag(
        *(q, k, v),
        alpha=alpha,
        beta=beta,
        mix=mix,
        packed=packed,
        block_size=operands.block_size,
        sinks=sinks,
        q_map=operands.q_map,
        k_map=operands.k_map,
    )


@torch.library.impl("lln::attention", _DEVICES)
def _attention(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    operands, keep_state = Operands(*inputs[:-1]), inputs[-1]
    _check_values(operands)
    if not runs_in_triton(operands.q):
        return attend_in_torch(operands, operands.packed).contiguous(), *_no_state(operands)
    out, state = triton_forward().attention_forward(
        *operands[:3],
        **operands.branches,
        shortest=operands.shortest,
        longest=operands.longest,
        keep_state=keep_state,
    )
    return out, *(_no_state(operands) if state is None else state)


@torch.library.impl("lln::attention_backward", _DEVICES)
def _attention_backward(grad: Tensor, *inputs: Any) -> list[Tensor]:
    operands, state = Operands(*inputs[:-2]), LLNState(*inputs[-2:])
    in_triton = runs_in_triton(operands.q) and _gradients_fit(operands.q)
    found = (_gradients_in_triton if in_triton else _gradients_in_torch)(grad, operands, state)
    return [
        operands.q.new_empty(0) if mine is None or gradient is None else gradient.to(mine.dtype)
        for gradient, mine in zip(found, operands.differentiable, strict=True)
    ]


def _gradients_fit(rows: Tensor) -> bool:
    """Whether the backward kernels' tiles fit the device.

    The widest float32 heads need more shared memory than GPUs outside a data centre have.
    """
    if rows.dtype != torch.float32 or rows.shape[-1] <= _WIDEST_FLOAT32_HEAD:
        return True
    device: Any = torch.cuda.get_device_properties(rows.device)
    return int(device.shared_memory_per_block_optin) >= _SHARED_BYTES_OF_WIDER


def _gradients_in_triton(
    grad: Tensor, operands: Operands, state: LLNState
) -> tuple[Tensor | None, ...]:
    from kernels.attention.gpu import backward

    found = backward.attention_backward(
        grad,
        *operands[:3],
        state=state if operands.alpha is not None else None,
        **operands.branches,
    )
    if found.mix is not None and operands.mix is not None and operands.mix.dim() == 1:
        found = found._replace(mix=found.mix.sum(0))
    return tuple(found)


def _gradients_in_torch(grad: Tensor, operands: Operands, _: LLNState) -> tuple[Tensor | None, ...]:
    """Computes the forward again, recorded by autograd."""
    leaves: list[Any] = [
        None if x is None else x.detach().requires_grad_() for x in operands.differentiable
    ]
    with torch.enable_grad():
        own = Operands(*leaves, *operands[_NUM_DIFFERENTIABLE:])
        out = attend_in_torch(own, own.packed)
    wanted = [x for x in leaves if x is not None]
    found = iter(torch.autograd.grad(out, wanted, grad, materialize_grads=True))
    return tuple(None if leaf is None else next(found).contiguous() for leaf in leaves)


@torch.library.register_fake("lln::attention")  # type: ignore[untyped-decorator]
def _fake_attention(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    operands, keep_state = Operands(*inputs[:-1]), inputs[-1]
    q, alpha = operands.q, operands.alpha
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    if not keep_state or alpha is None or not runs_in_triton(q):
        return out, *_no_state(operands)
    return out, *empty_state(q, alpha.shape[0], q.dtype)


@torch.library.register_fake("lln::attention_backward")  # type: ignore[untyped-decorator]
def _fake_attention_backward(grad: Tensor, *inputs: Any) -> list[Tensor]:
    operands = Operands(*inputs[:-2])
    return [
        grad.new_empty(0)
        if x is None
        else torch.empty_like(x, memory_format=torch.contiguous_format)
        for x in operands.differentiable
    ]


def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    operands = Operands(*inputs[:-1])
    ctx.settings = operands[_NUM_DIFFERENTIABLE + 1 :]
    ctx.save_for_backward(*operands.differentiable, operands.cu_seqlens, *output[1:])


def _backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    *tensors, log_mass, value = ctx.saved_tensors
    found = torch.ops.lln.attention_backward(grad, *tensors, *ctx.settings, log_mass, value)
    given = tensors[:_NUM_DIFFERENTIABLE]
    return (
        *(None if x is None else gradient for gradient, x in zip(found, given, strict=True)),
        *[None] * (len(Operands._fields) - _NUM_DIFFERENTIABLE + 1),
    )


torch.library.register_autograd("lln::attention", _backward, setup_context=_keep_for_backward)


def _check_values(operands: Operands) -> None:
    """Checks that numbers on the host are finite, which tracing cannot."""
    for name in ("alpha", "beta", "mix"):
        value = getattr(operands, name)
        if value is not None:
            arguments.check_finite(name, value)


def _no_state(operands: Operands) -> LLNState:
    """Two tensors, because an operator's outputs must not share memory."""
    return LLNState(operands.q.new_empty(0), operands.q.new_empty(0))


def needs_gradient(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)


def runs_in_triton(rows: Tensor) -> bool:
    return rows.is_cuda and rows.dtype != torch.float64 and HAS_TRITON


def launch_errors() -> tuple[type[Exception], ...]:
    """What torch raises for work that a device cannot take, and Triton where it is installed."""
    if not HAS_TRITON:
        return (RuntimeError,)
    from kernels.attention.gpu import launch

    return launch.LAUNCH_ERRORS


@cache
def triton_forward() -> Any:
    """The forward's launchers, imported on first use: a machine without a GPU has no triton."""
    from kernels.attention.gpu import forward

    return forward


@cache
def triton_gate() -> Any:
    """The launchers of a gate that is differentiated, likewise."""
    from kernels.attention.gpu import gate

    return gate


def without_autocast(x: Tensor) -> contextlib.AbstractContextManager[object]:
    """Keeps autocast from narrowing torch operations."""
    device = x.device.type
    if not torch.is_autocast_enabled(device):
        return _AS_IT_IS
    return torch.autocast(device, enabled=False)
