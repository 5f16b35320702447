"""The public operations: check the arguments, then run them where the tensors are.

On a GPU forward and backward run in our Triton kernels, as operators of torch's library. On a CPU
everything runs in torch operations, and goes through the operator where it is being compiled.
bfloat16 and float16 are computed in float32 on a CPU: without native units they would be slower and
no more exact.
"""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor

from kernels.attention import arguments, cpu, library
from kernels.attention.arguments import Bounds, PackedSequences
from kernels.attention.library import Operands
from kernels.attention.state import LLNState

Map: TypeAlias = tuple[Tensor | None, Tensor]


def lln_diag_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    alpha: float | Tensor,
    beta: float | Tensor,
    mix: float | Tensor = 0.5,
    cu_seqlens: Bounds | None = None,
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
    operands = Operands(
        *(q, k, v),
        alpha=arguments.check_scale("alpha", alpha, q, packed.count),
        beta=arguments.check_scale("beta", beta, k, packed.count),
        mix=arguments.check_mix(mix, q),
        cu_seqlens=packed.cu_seqlens,
        block_size=arguments.check_block_size(block_size),
        num_sinks=arguments.check_sinks(num_sinks),
        longest=packed.longest,
    )
    return _attend(_with_maps(operands, q_map, k_map), packed)


def lln_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    alpha: float | Tensor,
    beta: float | Tensor,
    cu_seqlens: Bounds | None = None,
    q_map: Map | None = None,
    k_map: Map | None = None,
) -> Tensor:
    """LLN alone: every query reads its sequence's state."""
    arguments.check_rows(q=q, k=k, v=v)
    packed = arguments.check_cu_seqlens(cu_seqlens, q)
    operands = Operands(
        *(q, k, v),
        alpha=arguments.check_scale("alpha", alpha, q, packed.count),
        beta=arguments.check_scale("beta", beta, k, packed.count),
        cu_seqlens=packed.cu_seqlens,
        longest=packed.longest,
    )
    return _attend(_with_maps(operands, q_map, k_map), packed)


def block_diagonal_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    cu_seqlens: Bounds | None = None,
    block_size: int = 64,
    num_sinks: int | tuple[int, int] = 0,
) -> Tensor:
    """Diag alone: softmax over the query's own block and the sequence's sinks, each key once."""
    arguments.check_rows(q=q, k=k, v=v)
    packed = arguments.check_cu_seqlens(cu_seqlens, q)
    operands = Operands(
        *(q, k, v),
        cu_seqlens=packed.cu_seqlens,
        block_size=arguments.check_block_size(block_size),
        num_sinks=arguments.check_sinks(num_sinks),
        longest=packed.longest,
    )
    return _attend(operands, packed)


def softmax_attention(
    q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens: Bounds | None = None
) -> Tensor:
    """Full attention within each sequence: the yardstick, at a cost that grows with the square."""
    arguments.check_rows(q=q, k=k, v=v)
    packed = arguments.check_cu_seqlens(cu_seqlens, q)
    operands = Operands(q, k, v, cu_seqlens=packed.cu_seqlens, longest=packed.longest)
    return _attend(operands, packed)


def lln_state(
    k: Tensor,
    v: Tensor,
    *,
    beta: float | Tensor,
    cu_seqlens: Bounds | None = None,
    k_map: Map | None = None,
) -> LLNState:
    """What LLN keeps of every sequence, in the accumulation dtype."""
    arguments.check_rows(k=k, v=v)
    packed = arguments.check_cu_seqlens(cu_seqlens, k)
    scale = arguments.check_scale("beta", beta, k, packed.count)
    affine = arguments.check_map("k_map", k_map, k)
    if library.runs_in_triton(k) and not _needs_gradient(k, v, scale, *(affine or ())):
        launched: LLNState = library.triton_launch().lln_state_forward(
            k, v, beta=scale, cu_seqlens=packed.cu_seqlens, k_map=affine
        )
        return launched
    wide_k, wide_v = library.widened(k), library.widened(v)
    with library.as_wide_as_given(k):
        return cpu.lln_state(wide_k, wide_v, beta=scale, packed=packed, k_map=affine)


def lln_read(
    q: Tensor,
    state: LLNState,
    *,
    alpha: float | Tensor,
    cu_seqlens: Bounds | None = None,
    q_map: Map | None = None,
) -> Tensor:
    """What every query reads from its own sequence's state."""
    arguments.check_rows(q=q)
    packed = arguments.check_cu_seqlens(cu_seqlens, q)
    arguments.check_state(state, q, packed.count)
    scale = arguments.check_scale("alpha", alpha, q, packed.count)
    affine = arguments.check_map("q_map", q_map, q)
    if library.runs_in_triton(q) and not _needs_gradient(q, *state, scale, *(affine or ())):
        launched: Tensor = library.triton_launch().lln_read_forward(
            q, state, alpha=scale, cu_seqlens=packed.cu_seqlens, q_map=affine
        )
        return launched
    wide_q = library.widened(q)
    with library.as_wide_as_given(q):
        read = cpu.lln_read(wide_q, state, alpha=scale, packed=packed, q_map=affine)
    return read.to(q.dtype)


def _attend(operands: Operands, packed: PackedSequences) -> Tensor:
    if operands.q.is_cuda or torch.compiler.is_compiling():
        return library.attend(operands)
    return library.attend_in_torch(operands, packed)


def _with_maps(operands: Operands, q_map: Map | None, k_map: Map | None) -> Operands:
    q_weight, q_bias = arguments.check_map("q_map", q_map, operands.q) or (None, None)
    k_weight, k_bias = arguments.check_map("k_map", k_map, operands.k) or (None, None)
    return operands._replace(q_weight=q_weight, q_bias=q_bias, k_weight=k_weight, k_bias=k_bias)


def _needs_gradient(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)
