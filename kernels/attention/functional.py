"""The attention operations that callers import: arguments are checked, then run on their device.

- Over packed sequences: LLN+Diag, LLN, Diag, softmax and sliding windows.
- LLN in two steps: `lln_state` sums keys and values, `lln_read` answers queries from the sums.
- The LLN paper's moment matching: alpha and beta from the spread of queries and keys.

On a GPU forward and backward run in Triton kernels, as operators of torch's library. On a CPU
everything runs in torch operations, and goes through the operator only while it is compiled. A CPU
computes bfloat16 and float16 in float32: without native units they are slower and no more exact.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from kernels.attention import arguments, cpu, custom_op
from kernels.attention.arguments import AffineMap, ArgumentError, Gate, Map, Sinks
from kernels.attention.custom_op import Operands
from kernels.attention.packed_sequences import Bounds, PackedSequences, check_cu_seqlens
from kernels.attention.ragged import window_batches
from kernels.attention.shares import token_shares
from kernels.attention.state import LLNState

# Slope and offset of the line between Var(log P_LLN) and the feature variance, as published with
# the authors' code (the paper's section A.7 describes the fit and prints no values).
SLOPE = 0.14855178144710912
OFFSET = -0.35487039130661086

NO_SINKS, NO_MAP = Sinks(0, 0), (None, None)


def lln_diag_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    alpha: float | Tensor,
    beta: float | Tensor,
    mix: float | Tensor | Gate = 0.5,
    mix_scale: float | Tensor | None = None,
    cu_seqlens: Bounds | None = None,
    block_size: int = 64,
    num_sinks: int | tuple[int, int] = 0,
    q_map: Map | None = None,
    k_map: Map | None = None,
) -> Tensor:
    """mix * LLN + (1 - mix) * Diag over packed sequences; README.md beside this file has the maths.

    q, k, v are (T, H, D) and cu_seqlens int32 (B + 1,), None for one sequence. alpha and beta are
    a number, (H,) or (B, H); mix is a number, (H,), (T, H), or a `Gate` by which each token
    chooses its own; mix_scale is a factor of all mixes, or (B,) of each sequence's. num_sinks
    counts the first tokens of each sequence that every block may attend to, or (first, last).
    q_map and k_map are affine maps ((H, D, D), (H, D)) applied before the LLN branch's exponentials
    alone; a weight of None is the identity, and a bias alone costs nothing.
    """
    if custom_op.launches_at_once(q):
        again: Tensor | None = custom_op.triton_forward().attend_again(
            *(q, k, v, cu_seqlens),
            alpha=alpha,
            beta=beta,
            mix=mix,
            mix_scale=mix_scale,
            block_size=block_size,
            num_sinks=num_sinks,
            q_map=q_map,
            k_map=k_map,
        )
        if again is not None:
            return again
    rows = arguments.check_rows(q=q, k=k, v=v)
    packed = check_cu_seqlens(cu_seqlens, q)
    count = packed.count
    return _attend(
        *(q, k, v, packed),
        alpha=arguments.check_shared_scale("alpha", alpha, rows, count),
        beta=arguments.check_shared_scale("beta", beta, rows, count),
        mix=arguments.check_mix_or_gate(mix, rows),
        mix_scale=arguments.check_mix_scale(mix_scale, rows, count),
        block_size=arguments.check_block_size(block_size),
        num_sinks=arguments.check_sinks(num_sinks),
        q_map=arguments.check_map("q_map", q_map, rows),
        k_map=arguments.check_map("k_map", k_map, rows),
    )


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
    rows = arguments.check_rows(q=q, k=k, v=v)
    packed = check_cu_seqlens(cu_seqlens, q)
    return _attend(
        *(q, k, v, packed),
        alpha=arguments.check_shared_scale("alpha", alpha, rows, packed.count),
        beta=arguments.check_shared_scale("beta", beta, rows, packed.count),
        q_map=arguments.check_map("q_map", q_map, rows),
        k_map=arguments.check_map("k_map", k_map, rows),
    )


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
    packed = check_cu_seqlens(cu_seqlens, q)
    return _attend(
        *(q, k, v, packed),
        block_size=arguments.check_block_size(block_size),
        num_sinks=arguments.check_sinks(num_sinks),
    )


def softmax_attention(
    q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens: Bounds | None = None
) -> Tensor:
    """Full attention within each sequence, at a cost that grows with the square of its length."""
    arguments.check_rows(q=q, k=k, v=v)
    packed = check_cu_seqlens(cu_seqlens, q)
    return _attend(q, k, v, packed)


def sliding_window_attention(
    q: Tensor, k: Tensor, v: Tensor, *, half_window: int, cu_seqlens: Bounds | None = None
) -> Tensor:
    """Softmax over the keys of the same sequence at most `half_window` tokens away, (T, H, D)."""
    arguments.check_rows(q=q, k=k, v=v)
    packed = check_cu_seqlens(cu_seqlens, q)
    if half_window < 0:
        raise ArgumentError(f"half_window must not be negative, got {half_window}")
    batches = window_batches(packed.host_bounds(), half_window, q.device)
    out = torch.empty_like(v)
    for batch in batches:
        with custom_op.without_autocast(q):
            attended = F.scaled_dot_product_attention(
                q[batch.queries].transpose(1, 2),
                k[batch.keys].transpose(1, 2),
                v[batch.keys].transpose(1, 2),
                attn_mask=batch.visible,
            )
        rows = attended.transpose(1, 2).flatten(0, 1)  # [n * B, H, D]
        out.index_copy_(0, batch.queries.flatten()[batch.filled], rows[batch.filled])
    return out


def lln_state(
    k: Tensor,
    v: Tensor,
    *,
    beta: float | Tensor,
    cu_seqlens: Bounds | None = None,
    k_map: Map | None = None,
) -> LLNState:
    """LLN's state of every sequence, in the accumulation dtype."""
    rows = arguments.check_rows(k=k, v=v)
    packed = check_cu_seqlens(cu_seqlens, k)
    scale = arguments.check_scale("beta", beta, rows, packed.count)
    affine = arguments.check_map("k_map", k_map, rows)
    if custom_op.runs_in_triton(k) and not custom_op.needs_gradient(k, v, scale, *(affine or ())):
        launched: LLNState = custom_op.triton_forward().lln_state_forward(
            k, v, beta=scale, cu_seqlens=packed.cu_seqlens, k_map=affine
        )
        return launched
    with custom_op.without_autocast(k):
        return cpu.lln_state(k, v, beta=scale, packed=packed, k_map=affine)


def lln_read(
    q: Tensor,
    state: LLNState,
    *,
    alpha: float | Tensor,
    cu_seqlens: Bounds | None = None,
    q_map: Map | None = None,
) -> Tensor:
    """What every query reads from its own sequence's state."""
    rows = arguments.check_rows(q=q)
    packed = check_cu_seqlens(cu_seqlens, q)
    arguments.check_state(state, q, packed.count)
    scale = arguments.check_scale("alpha", alpha, rows, packed.count)
    affine = arguments.check_map("q_map", q_map, rows)
    if custom_op.runs_in_triton(q) and not custom_op.needs_gradient(
        q, *state, scale, *(affine or ())
    ):
        launched: Tensor = custom_op.triton_forward().lln_read_forward(
            q, state, alpha=scale, cu_seqlens=packed.cu_seqlens, q_map=affine
        )
        return launched
    with custom_op.without_autocast(q):
        read = cpu.lln_read(q, state, alpha=scale, packed=packed, q_map=affine)
    return read.to(q.dtype)


def lln_shares(
    q: Tensor,
    *,
    mix: float | Tensor | Gate,
    mix_scale: float | Tensor | None = None,
    cu_seqlens: Bounds | None = None,
) -> Tensor:
    """LLN's share in each token's output, as `lln_diag_attention` mixes: (H,), or (T, H)."""
    rows = arguments.check_rows(q=q)
    packed = check_cu_seqlens(cu_seqlens, q)
    factor = arguments.check_mix_scale(mix_scale, rows, packed.count)
    return token_shares(q, arguments.check_mix_or_gate(mix, rows), factor, packed)


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    packed: PackedSequences,
    *,
    alpha: Tensor | None = None,
    beta: Tensor | None = None,
    mix: Tensor | Gate | None = None,
    mix_scale: Tensor | None = None,
    block_size: int | None = None,
    num_sinks: Sinks = NO_SINKS,
    q_map: AffineMap | None = None,
    k_map: AffineMap | None = None,
) -> Tensor:
    """Checked arguments; absent ones choose the branches, as in `custom_op`."""
    q_weight, q_bias = q_map or NO_MAP
    k_weight, k_bias = k_map or NO_MAP
    maps = q_weight, q_bias, k_weight, k_bias
    in_triton = custom_op.runs_in_triton(q)
    of_mix = mix if isinstance(mix, Gate) else (mix,)
    needs_gradient = custom_op.needs_gradient(q, k, v, alpha, beta, *of_mix, mix_scale, *maps)
    if in_triton and custom_op.is_untraced(q) and not needs_gradient:
        # Without the operator, which takes the host longer than the launches do.
        launched: Tensor = custom_op.triton_forward().attention_forward(
            *(q, k, v),
            alpha=alpha,
            beta=beta,
            mix=mix,
            mix_scale=mix_scale,
            cu_seqlens=packed.cu_seqlens,
            block_size=block_size,
            num_sinks=num_sinks,
            q_map=q_map,
            k_map=k_map,
            packed=packed,
        )[0]
        return launched
    # The operator takes every token's own share: autograd then leads on to what it is made of.
    shares = None if mix is None else _shares(q, mix, mix_scale, packed)
    operands = Operands(
        *(q, k, v, alpha, beta, shares, *maps),
        cu_seqlens=packed.cu_seqlens,
        block_size=block_size,
        num_sinks=num_sinks,
        shortest=packed.shortest,
        longest=packed.longest,
    ).of_sequences(packed.count)
    if in_triton or q.is_cuda or torch.compiler.is_compiling():
        return custom_op.attend(operands)
    return custom_op.attend_in_torch(operands, packed)


def _shares(
    q: Tensor, mix: Tensor | Gate, mix_scale: Tensor | None, packed: PackedSequences
) -> Tensor:
    """With a gradient where one is wanted. Factors have theirs from torch alone."""
    in_triton = custom_op.runs_in_triton(q) and custom_op.is_untraced(q)
    if in_triton and isinstance(mix, Gate) and not custom_op.needs_gradient(mix_scale):
        shares: Tensor = custom_op.triton_gate().gate_shares(q, mix, mix_scale, packed.cu_seqlens)
        return shares
    return token_shares(q, mix, mix_scale, packed)


class MomentMatch(NamedTuple):
    alpha: Tensor  # []
    beta: Tensor  # []


def paper_moment_matching(q: Tensor, k: Tensor) -> MomentMatch:
    """Equation 10 over all of q and k at once, as the authors' code takes its statistics.

    The result depends on everything in q and k. To get the same result for the same text, measure
    once and store the numbers.
    """
    sigma_q, sigma_k = q.double().std(), k.double().std()
    feature_std = (((sigma_q * sigma_k) ** 2 - OFFSET) / (2 * SLOPE)).sqrt()
    return MomentMatch(feature_std / sigma_q, feature_std / sigma_k)
