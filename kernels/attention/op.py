"""The public operations: check the arguments, then run them where the tensors are.

On a GPU the forward pass runs in our Triton kernels, and gradients are recomputed in torch
operations. On a CPU everything runs in torch operations. bfloat16 and float16 are computed in
float32 on a CPU: without native units they would be slower and no more exact.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any, TypeAlias

import torch
from torch import Tensor

from kernels.attention import arguments, cpu
from kernels.attention.arguments import AffineMap, Sinks
from kernels.attention.state import LLNState

Map: TypeAlias = tuple[Tensor | None, Tensor]
Implementation: TypeAlias = Callable[..., Tensor]

_NO_SINKS = Sinks(0, 0)


def lln_diag_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    alpha: float | Tensor,
    beta: float | Tensor,
    mix: float | Tensor = 0.5,
    cu_seqlens: Tensor | None = None,
    block_size: int = 64,
    num_sinks: int | tuple[int, int] = 0,
    q_map: Map | None = None,
    k_map: Map | None = None,
) -> Tensor:
    """mix * LLN + (1 - mix) * Diag over packed sequences; README.md beside this file has the maths.

    q, k, v are (T, H, D) and cu_seqlens int32 (B + 1,), None for one sequence. alpha and beta are
    a number, (H,) or (B, H); mix is a number, (H,) or (T, H). num_sinks counts the first tokens
    of each sequence that every block may attend to, or (first, last). q_map and k_map are affine
    maps ((H, D, D), (H, D)) applied before the LLN branch's exponentials alone; a weight of None
    is the identity, and a bias alone costs nothing.
    """
    arguments.check_rows(q=q, k=k, v=v)
    packed = arguments.check_cu_seqlens(cu_seqlens, q)
    block_size = arguments.check_block_size(block_size)
    sinks = arguments.check_sinks(num_sinks)

    def in_torch(*tensors: Tensor) -> Tensor:
        q, k, v, alpha, beta, mix, *maps = tensors
        return cpu.lln_diag(
            *(q, k, v),
            alpha=alpha,
            beta=beta,
            mix=mix,
            packed=packed,
            block_size=block_size,
            sinks=sinks,
            q_map=_as_map(*maps[:2]),
            k_map=_as_map(*maps[2:]),
        )

    def in_triton(*tensors: Tensor) -> Tensor:
        q, k, v, alpha, beta, mix, *maps = tensors
        launched: Tensor = _triton().lln_diag_forward(
            *(q, k, v),
            alpha=alpha,
            beta=beta,
            mix=mix,
            cu_seqlens=packed.cu_seqlens,
            block_size=block_size,
            num_sinks=sinks,
            q_map=_as_map(*maps[:2]),
            k_map=_as_map(*maps[2:]),
        )
        return launched

    return _run(
        in_torch,
        in_triton,
        *(q, k, v),
        arguments.check_scale("alpha", alpha, q, packed.count),
        arguments.check_scale("beta", beta, k, packed.count),
        arguments.check_mix(mix, q),
        *(arguments.check_map("q_map", q_map, q) or (None, None)),
        *(arguments.check_map("k_map", k_map, k) or (None, None)),
    )


def lln_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    alpha: float | Tensor,
    beta: float | Tensor,
    cu_seqlens: Tensor | None = None,
    q_map: Map | None = None,
    k_map: Map | None = None,
) -> Tensor:
    """LLN alone: every query reads its sequence's state."""
    arguments.check_rows(q=q, k=k, v=v)
    state = lln_state(k, v, beta=beta, cu_seqlens=cu_seqlens, k_map=k_map)
    return lln_read(q, state, alpha=alpha, cu_seqlens=cu_seqlens, q_map=q_map)


def block_diagonal_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    cu_seqlens: Tensor | None = None,
    block_size: int = 64,
    num_sinks: int | tuple[int, int] = 0,
) -> Tensor:
    """Diag alone: softmax over the query's own block and the sequence's sinks, each key once."""
    arguments.check_rows(q=q, k=k, v=v)
    packed = arguments.check_cu_seqlens(cu_seqlens, q)
    block_size = arguments.check_block_size(block_size)
    sinks = arguments.check_sinks(num_sinks)

    def in_torch(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return cpu.block_softmax(q, k, v, packed=packed, block_size=block_size, sinks=sinks)

    def in_triton(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        launched: Tensor = _triton().block_diagonal_forward(
            *(q, k, v), cu_seqlens=packed.cu_seqlens, block_size=block_size, num_sinks=sinks
        )
        return launched

    return _run(in_torch, in_triton, q, k, v)


def softmax_attention(
    q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens: Tensor | None = None
) -> Tensor:
    """Full attention within each sequence: the yardstick, at a cost that grows with the square."""
    arguments.check_rows(q=q, k=k, v=v)
    packed = arguments.check_cu_seqlens(cu_seqlens, q)
    return cpu.block_softmax(q, k, v, packed=packed, block_size=None, sinks=_NO_SINKS)


def lln_state(
    k: Tensor,
    v: Tensor,
    *,
    beta: float | Tensor,
    cu_seqlens: Tensor | None = None,
    k_map: Map | None = None,
) -> LLNState:
    """What LLN keeps of every sequence, in the accumulation dtype."""
    arguments.check_rows(k=k, v=v)
    packed = arguments.check_cu_seqlens(cu_seqlens, k)
    scale = arguments.check_scale("beta", beta, k, packed.count)
    affine = arguments.check_map("k_map", k_map, k)
    if _runs_in_triton(k) and not _needs_gradient(k, v, scale, *(affine or ())):
        launched: LLNState = _triton().lln_state_forward(
            k, v, beta=scale, cu_seqlens=packed.cu_seqlens, k_map=affine
        )
        return launched
    wide_k, wide_v = _widened(k, v)
    return cpu.lln_state(wide_k, wide_v, beta=scale, packed=packed, k_map=affine)


def lln_read(
    q: Tensor,
    state: LLNState,
    *,
    alpha: float | Tensor,
    cu_seqlens: Tensor | None = None,
    q_map: Map | None = None,
) -> Tensor:
    """What every query reads from its own sequence's state."""
    arguments.check_rows(q=q)
    packed = arguments.check_cu_seqlens(cu_seqlens, q)
    arguments.check_state(state, q, packed.count)

    def in_torch(
        q: Tensor, log_mass: Tensor, value: Tensor, alpha: Tensor, *affine: Tensor
    ) -> Tensor:
        return cpu.lln_read(
            q, LLNState(log_mass, value), alpha=alpha, packed=packed, q_map=_as_map(*affine)
        )

    def in_triton(
        q: Tensor, log_mass: Tensor, value: Tensor, alpha: Tensor, *affine: Tensor
    ) -> Tensor:
        launched: Tensor = _triton().lln_read_forward(
            q,
            LLNState(log_mass, value),
            alpha=alpha,
            cu_seqlens=packed.cu_seqlens,
            q_map=_as_map(*affine),
        )
        return launched

    return _run(
        in_torch,
        in_triton,
        q,
        *state,
        arguments.check_scale("alpha", alpha, q, packed.count),
        *(arguments.check_map("q_map", q_map, q) or (None, None)),
    )


def _run(in_torch: Implementation, in_triton: Implementation, *tensors: Tensor | None) -> Tensor:
    rows = tensors[0]
    assert rows is not None, "the first tensor holds the rows"
    if not _runs_in_triton(rows):
        return _run_wide(in_torch, *tensors)
    if _needs_gradient(*tensors):
        result: Tensor = _TritonForward.apply(in_torch, in_triton, *tensors)  # type: ignore[no-untyped-call]
        return result
    return in_triton(*tensors)


def _run_wide(in_torch: Implementation, *tensors: Tensor | None) -> Tensor:
    """Compute in at least float32, answer in the caller's dtype."""
    rows = tensors[0]
    assert rows is not None, "the first tensor holds the rows"
    return in_torch(*_widened(*tensors)).to(rows.dtype)


class _TritonForward(torch.autograd.Function):
    """Forward in Triton; backward recomputes the same function in torch operations."""

    @staticmethod
    def forward(
        ctx: Any,
        in_torch: Implementation,
        in_triton: Implementation,
        *tensors: Tensor | None,
    ) -> Tensor:
        ctx.in_torch = in_torch
        ctx.save_for_backward(*tensors)
        return in_triton(*tensors)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        needed = ctx.needs_input_grad[2:]
        inputs = [
            None if x is None else x.detach().requires_grad_(is_needed)
            for x, is_needed in zip(ctx.saved_tensors, needed, strict=True)
        ]
        with torch.enable_grad():
            out = _run_wide(ctx.in_torch, *inputs)
        wanted = [x for x in inputs if x is not None and x.requires_grad]
        found = iter(torch.autograd.grad(out, wanted, grad_outputs, allow_unused=True))
        return (None, None, *(next(found) if is_needed else None for is_needed in needed))


def _runs_in_triton(rows: Tensor) -> bool:
    return rows.is_cuda and rows.dtype != torch.float64 and _has_triton()


def _needs_gradient(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def _triton() -> Any:
    """The launchers, imported on first use: a machine without a GPU has no triton."""
    from kernels.attention import triton_launch

    return triton_launch


def _widened(*tensors: Tensor | None) -> tuple[Any, ...]:
    narrow = (torch.bfloat16, torch.float16)
    return tuple(x.float() if x is not None and x.dtype in narrow else x for x in tensors)


def _as_map(weight: Tensor | None, bias: Tensor | None) -> AffineMap | None:
    return None if bias is None else AffineMap(weight, bias)
