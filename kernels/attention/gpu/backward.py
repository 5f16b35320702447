"""Launches the backward kernels. Nothing here waits for the device.

Two passes over the rows, as in the forward: queries and gradients give the gradient of the state,
then one program a tile of tokens finishes the gradients of its rows. Sums over tiles and pieces
have a fixed order. d_x is the gradient of x.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from kernels.attention.arguments import Map
from kernels.attention.gpu.launch import Branches, unit_stride
from kernels.attention.gpu.rows_gradient import Rows, launch_rows_gradient
from kernels.attention.gpu.state_gradient import launch_key_weight_gradient, launch_state_gradient
from kernels.attention.gpu.tiles import WHOLE
from kernels.attention.state import LLNState


class Gradients(NamedTuple):
    """In the order of the forward's tensors; None where there was none."""

    q: Tensor
    k: Tensor
    v: Tensor
    alpha: Tensor | None = None  # float32 [B, H]
    beta: Tensor | None = None  # float32 [B, H]
    mix: Tensor | None = None  # float32 [T, H]
    q_weight: Tensor | None = None
    q_bias: Tensor | None = None
    k_weight: Tensor | None = None
    k_bias: Tensor | None = None


def attention_backward(
    grad: Tensor,  # [T, H, D]
    q: Tensor,  # [T, H, D]
    k: Tensor,
    v: Tensor,
    *,
    cu_seqlens: Tensor,  # int32 [B + 1]
    state: LLNState | None = None,  # as the forward left it; None without LLN
    alpha: Tensor | None = None,  # float32 [B, H]
    beta: Tensor | None = None,  # float32 [B, H]
    mix: Tensor | None = None,  # float32 [H] or [T, H]; None unless there are both branches
    block_size: int | None = None,  # None without Diag; without LLN too: whole sequences
    num_sinks: tuple[int, int] = (0, 0),
    q_map: Map | None = None,
    k_map: Map | None = None,
) -> Gradients:
    d_q, d_k, d_v = (torch.empty(q.shape, dtype=q.dtype, device=q.device) for _ in range(3))
    q, k, v, grad = (unit_stride(x) for x in (q, k, v, grad))
    rows = Rows(q, k, v, grad, d_q, d_k, d_v)
    branches = Branches(
        *(cu_seqlens, alpha, beta, mix),
        block_size=block_size,
        num_sinks=num_sinks,
        q_map=q_map,
        k_map=k_map,
    )
    if state is None:
        launch_rows_gradient(rows, branches._replace(block_size=block_size or WHOLE), None, None)
        return Gradients(d_q, d_k, d_v)
    # The kernels take a state as contiguous.
    own = LLNState(*(part.contiguous() for part in state))
    return _differentiate_lln(rows, branches, own)


def _differentiate_lln(rows: Rows, branches: Branches, state: LLNState) -> Gradients:
    """With LLN, and with Diag where there is a block size."""
    alpha, beta, q_map, k_map = branches.alpha, branches.beta, branches.q_map, branches.k_map
    assert alpha is not None, "a state is read with alpha"
    assert beta is not None, "a state is written with beta"
    d_state = launch_state_gradient(rows.q, rows.grad, branches, state)
    d_beta, d_mix = launch_rows_gradient(rows, branches, state, d_state)
    assert d_beta is not None, "there is LLN"
    _, dz, stretch = d_state.channels.unbind(2)  # [B, H, D] each
    d_alpha = stretch.sum(-1)
    if q_map is not None:
        d_alpha = d_alpha + (q_map[1] * dz).sum(-1)
    if k_map is not None:
        d_beta = d_beta + (k_map[1] * dz).sum(-1)
    has_k_weight = k_map is not None and k_map[0] is not None
    return Gradients(
        *(rows.d_q, rows.d_k, rows.d_v),
        alpha=d_alpha,
        beta=d_beta,
        mix=d_mix,
        q_weight=d_state.q_weight,
        q_bias=None if q_map is None else (alpha.unsqueeze(-1) * dz).sum(0),
        k_weight=(
            launch_key_weight_gradient(rows.k, rows.v, branches, state, d_state)
            if has_k_weight
            else None
        ),
        k_bias=None if k_map is None else (beta.unsqueeze(-1) * dz).sum(0),
    )
