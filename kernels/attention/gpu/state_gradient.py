"""Launches what finds the gradient of the state, and of the key map's weight from it."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton  # type: ignore[import-untyped]
from torch import Tensor

from kernels.attention.gpu import tiles
from kernels.attention.gpu.backward_lln import key_map_gradient_kernel
from kernels.attention.gpu.backward_state import state_gradient_kernel
from kernels.attention.gpu.constants import (
    Constants,
    key_map_constants,
    state_gradient_constants,
    wide_dtype,
)
from kernels.attention.gpu.launch import (
    Branches,
    launch,
    map_arguments,
    map_flags,
    mix_arguments,
    row_arguments,
    scale_arguments,
    state_arguments,
)
from kernels.attention.gpu.locate import num_slots
from kernels.attention.gpu.pieces import add_pieces
from kernels.attention.state import LLNState


class StateGradient(NamedTuple):
    """What the tokens must know of the state's gradient."""

    value: Tensor  # [B, H, D, D] of kappa V, in a dtype of float32's range
    channels: Tensor  # float32 [B, H, 3, D]: e; then the sums of dz and of x dz
    q_weight: Tensor | None  # float32 [H, D, D]


def launch_state_gradient(
    q: Tensor, grad: Tensor, branches: Branches, state: LLNState
) -> StateGradient:
    """The first pass."""
    num_rows, num_heads, head_dim = q.shape
    num_sequences = branches.num_sequences
    constants = _state_constants(q, branches)
    piece = constants["PIECE"]
    slots = num_slots(num_rows, num_sequences, piece, 1, piece)
    # Only a sequence of several pieces leaves any behind, and that takes more rows than a piece.
    num_parts = slots if num_rows > piece else 0
    shape = num_heads, head_dim, head_dim
    value = q.new_empty(num_sequences, *shape, dtype=wide_dtype(q.dtype))
    channels = q.new_empty(num_sequences, num_heads, 3, head_dim, dtype=torch.float32)
    part_value = q.new_empty(num_parts, *shape, dtype=torch.float32)
    part_channels = q.new_empty(num_parts, num_heads, 3, head_dim, dtype=torch.float32)
    # Slots without a piece are added up with the others.
    part_weight = q.new_zeros(slots, *shape, dtype=torch.float32) if constants["WEIGHT"] else None
    launch(
        state_gradient_kernel,
        slots * num_heads * triton.cdiv(head_dim, constants["BC"]),
        **row_arguments(q=q, g=grad),
        **map_arguments(branches.q_map),
        **scale_arguments(alpha=branches.alpha),
        **mix_arguments(branches.mix),
        p_cu_seqlens=branches.cu_seqlens,
        **state_arguments(state),
        p_value_gradient=value,
        p_channels=channels,
        p_part_value_gradient=part_value,
        p_part_channels=part_channels,
        p_part_weight=part_weight,
        num_sequences=num_sequences,
        num_heads=num_heads,
        **constants,
    )
    if num_parts:
        add_pieces(part_value, branches.cu_seqlens, value, piece, num_rows)
        add_pieces(part_channels, branches.cu_seqlens, channels, piece, num_rows)
    return StateGradient(value, channels, None if part_weight is None else part_weight.sum(0))


def launch_key_weight_gradient(
    k: Tensor, v: Tensor, branches: Branches, state: LLNState, d_state: StateGradient
) -> Tensor:
    """The gradient of the key map's weight, which takes a third look at keys and values."""
    num_rows, num_heads, head_dim = k.shape
    constants = key_map_constants(head_dim, k.dtype, tiles.family_of(k.device))
    piece = constants["PIECE"]
    slots = num_slots(num_rows, branches.num_sequences, piece, 1, piece)
    parts = k.new_zeros(slots, num_heads, head_dim, head_dim, dtype=torch.float32)
    launch(
        key_map_gradient_kernel,
        slots * num_heads * triton.cdiv(head_dim, constants["BC"]),
        **row_arguments(k=k, v=v),
        **map_arguments(branches.k_map),
        **scale_arguments(beta=branches.beta),
        p_cu_seqlens=branches.cu_seqlens,
        p_log_mass=state.log_mass,
        p_value_gradient=d_state.value,
        p_channels=d_state.channels,
        p_part_weight=parts,
        num_sequences=branches.num_sequences,
        num_heads=num_heads,
        **constants,
    )
    return parts.sum(0)


def _state_constants(q: Tensor, branches: Branches) -> Constants:
    return state_gradient_constants(
        q.shape[2],
        q.dtype,
        mix=branches.mix is not None,
        family=tiles.family_of(q.device),
        **map_flags(branches.q_map),
    )
