"""Launches the backward kernels. Nothing here waits for the device.

Two passes over the rows, as in the forward: queries and gradients give the gradient of the state,
then every tile of tokens is finished in one program. Sums over tiles and pieces have a fixed order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton  # type: ignore[import-untyped]
from torch import Tensor

from kernels.attention.state import LLNState
from kernels.attention.triton_gradient_constants import (
    ADDED_NUMBERS,
    add_pieces_constants,
    add_to_sinks_constants,
    diag_rows_constants,
    key_map_constants,
    rows_gradient_constants,
    state_gradient_constants,
    wide_dtype,
)
from kernels.attention.triton_gradient_diag import diag_rows_kernel
from kernels.attention.triton_gradient_lln import key_map_gradient_kernel
from kernels.attention.triton_gradient_rows import (
    add_tiles_kernel,
    add_to_sinks_kernel,
    rows_gradient_kernel,
)
from kernels.attention.triton_gradient_state import add_pieces_kernel, state_gradient_kernel
from kernels.attention.triton_groups import head_groups, map_of_heads
from kernels.attention.triton_operands import (
    Map,
    device_of,
    launch,
    map_flags,
    map_operands,
    row_strides,
    unit_stride,
)
from kernels.attention.triton_slots import num_slots
from kernels.attention.triton_tiles import (
    WHOLE,
    Span,
    family_of,
    query_span,
)


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


class StateGradient(NamedTuple):
    """What the tokens must know of the state's gradient."""

    value: Tensor  # [B, H, D, D] of kappa V, in a dtype of float32's range
    excess: Tensor  # float32 [B, H, 3, D]: e; then the sums of dz and of x dz
    q_weight: Tensor | None  # float32 [H, D, D]


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
    mix: Tensor | None = None,  # float32 [H] or [T, H]; None where there is one branch
    block_size: int | None = None,  # None without Diag; without LLN too: whole sequences
    num_sinks: tuple[int, int] = (0, 0),
    q_map: Map | None = None,
    k_map: Map | None = None,
) -> Gradients:
    q, k, v, grad = (unit_stride(x) for x in (q, k, v, grad))
    out = _Outputs(*(torch.empty(q.shape, dtype=q.dtype, device=q.device) for _ in range(3)))
    if state is None:
        _rows(_Group(grad, q, k, v, out), cu_seqlens, block_size or WHOLE, num_sinks)
        return Gradients(*out)
    assert alpha is not None, "a state is read with alpha"
    assert beta is not None, "a state is written with beta"
    found = []
    for heads in head_groups(q, _first_pass_programs(q, mix, q_map)):
        group = _Group(
            grad=grad[:, heads],
            q=q[:, heads],
            k=k[:, heads],
            v=v[:, heads],
            out=_Outputs(*(x[:, heads] for x in out)),
            state=LLNState(*(part[:, heads].contiguous() for part in state)),
            alpha=alpha[:, heads],
            beta=beta[:, heads],
            mix=None if mix is None else mix[..., heads],
            q_map=map_of_heads(q_map, heads),
            k_map=map_of_heads(k_map, heads),
        )
        found.append(_through_state(group, cu_seqlens, block_size, num_sinks))
    return found[0] if len(found) == 1 else _side_by_side(found, out)


class _Outputs(NamedTuple):
    """Gradients of the rows [T, H, D], by the name of what they are the gradients of."""

    q: Tensor
    k: Tensor
    v: Tensor


class _Group(NamedTuple):
    """Some heads, all of which may be."""

    grad: Tensor  # [T, H, D]
    q: Tensor
    k: Tensor
    v: Tensor
    out: _Outputs
    state: LLNState | None = None  # with alpha and beta, or none of the three
    alpha: Tensor | None = None  # [B, H]
    beta: Tensor | None = None
    mix: Tensor | None = None  # [H] or [T, H]
    q_map: Map | None = None
    k_map: Map | None = None

    @property
    def strides(self) -> list[int]:
        """Of all that is read by row."""
        return [stride for x in (self.q, self.k, self.v, self.grad) for stride in x.stride()[:2]]


class _Tiles(NamedTuple):
    """How the second pass cuts the rows."""

    cu_seqlens: Tensor
    slots: int
    span: Span
    num_sinks: tuple[int, int]

    @property
    def num_sequences(self) -> int:
        return self.cu_seqlens.numel() - 1

    @property
    def cut(self) -> tuple[int, int, int]:
        return self.span.tokens, self.span.tiles, self.span.rows


def _first_pass_programs(q: Tensor, mix: Tensor | None, q_map: Map | None) -> int:
    """Of one head."""
    num_rows, _, head_dim = q.shape
    constants = state_gradient_constants(
        head_dim, q.dtype, mix=mix is not None, family=family_of(q.device), **map_flags(q_map)
    )
    pieces: int = num_rows // constants["PIECE"]
    return pieces * -(-head_dim // int(constants["BC"]))


def _through_state(
    group: _Group,
    cu_seqlens: Tensor,
    block_size: int | None,
    num_sinks: tuple[int, int],
) -> Gradients:
    grad, q, k, v, out, state, alpha, beta, mix, q_map, k_map = group
    assert state is not None
    assert alpha is not None
    assert beta is not None
    of_state = _state(grad, q, state, alpha, mix, cu_seqlens, q_map)
    of_beta, of_mix = _rows(group, cu_seqlens, block_size, num_sinks, of_state)
    _, dz, stretch = of_state.excess.unbind(2)  # [B, H, D] each
    d_alpha, d_beta = stretch.sum(-1), of_beta
    if q_map is not None:
        d_alpha = d_alpha + (q_map[1] * dz).sum(-1)
    if k_map is not None:
        d_beta = d_beta + (k_map[1] * dz).sum(-1)
    return Gradients(
        *out,
        alpha=d_alpha,
        beta=d_beta,
        mix=of_mix,
        q_weight=of_state.q_weight,
        q_bias=None if q_map is None else (alpha.unsqueeze(-1) * dz).sum(0),
        k_weight=_key_weight(k, v, state, of_state, beta, cu_seqlens, k_map),
        k_bias=None if k_map is None else (beta.unsqueeze(-1) * dz).sum(0),
    )


def _side_by_side(groups: Sequence[Gradients], out: _Outputs) -> Gradients:
    """All heads' gradients; those of the rows have been written into `out`."""

    def of_all(*parts: Tensor | None, dim: int) -> Tensor | None:
        found = [part for part in parts if part is not None]
        return torch.cat(found, dim) if found else None

    alpha, beta, mix, *maps = zip(*(group[len(out) :] for group in groups), strict=True)
    return Gradients(
        *out,
        *(of_all(*parts, dim=1) for parts in (alpha, beta, mix)),
        *(of_all(*parts, dim=0) for parts in maps),
    )


def _state(
    grad: Tensor,
    q: Tensor,
    state: LLNState,
    alpha: Tensor,
    mix: Tensor | None,
    cu_seqlens: Tensor,
    q_map: Map | None,
) -> StateGradient:
    num_rows, num_heads, head_dim = q.shape
    num_sequences = cu_seqlens.numel() - 1
    constants = state_gradient_constants(
        head_dim, q.dtype, mix=mix is not None, family=family_of(q.device), **map_flags(q_map)
    )
    piece = constants["PIECE"]
    slots = num_slots(num_rows, num_sequences, piece, 1)
    # Only a sequence of several pieces leaves any behind, and that takes more rows than a piece.
    kept = slots if num_rows > piece else 0
    shape = num_heads, head_dim, head_dim
    value = q.new_empty(num_sequences, *shape, dtype=wide_dtype(q.dtype))
    channels = q.new_empty(num_sequences, num_heads, 3, head_dim, dtype=torch.float32)
    part_value = q.new_empty(kept, *shape, dtype=torch.float32)
    part_channels = q.new_empty(kept, num_heads, 3, head_dim, dtype=torch.float32)
    # Slots that no piece takes are added up with the others.
    part_weight = q.new_zeros(slots, *shape, dtype=torch.float32) if constants["WEIGHT"] else None
    weight, bias = map_operands(q_map, q)
    with device_of(q):
        launch(
            state_gradient_kernel,
            slots * num_heads * triton.cdiv(head_dim, constants["BC"]),
            q, grad, weight, bias, alpha, q if mix is None else mix, cu_seqlens, *state,
            value, channels, part_value, part_channels, q if part_weight is None else part_weight,
            num_sequences, num_heads, *q.stride()[:2], *grad.stride()[:2], *alpha.stride(),
            *row_strides(mix), **constants,
        )  # fmt: skip
        if kept:
            add_pieces(part_value, cu_seqlens, value, piece)
            add_pieces(part_channels, cu_seqlens, channels, piece)
    return StateGradient(value, channels, None if part_weight is None else part_weight.sum(0))


def add_pieces(parts: Tensor, cu_seqlens: Tensor, sums: Tensor, piece: int) -> None:
    num_sequences, num_heads = sums.shape[:2]
    constants = add_pieces_constants(piece, parts[0, 0].numel())
    launch(
        add_pieces_kernel,
        num_sequences * num_heads * triton.cdiv(constants["SIZE"], constants["BS"]),
        *(parts, cu_seqlens, sums, num_heads),
        **constants,
    )


def _rows(
    group: _Group,
    cu_seqlens: Tensor,
    block_size: int | None,
    num_sinks: tuple[int, int],
    of_state: StateGradient | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Writes the gradients that tiles of rows find, and returns beta's and, where there are two
    branches, the mix's."""
    _, q, _, _, out, state, alpha, beta, mix, q_map, k_map = group
    num_rows, num_heads, head_dim = q.shape
    constants = rows_gradient_constants(
        head_dim, q.dtype, block_size=block_size, lln=state is not None, sinks=any(num_sinks),
        q_map=map_flags(q_map), k_map=map_flags(k_map), family=family_of(q.device),
    )  # fmt: skip
    span = query_span(block_size or constants["BM"], constants["BM"])
    slots = num_slots(num_rows, cu_seqlens.numel() - 1, span.tokens, span.tiles)
    tiles = _Tiles(cu_seqlens, slots, span, num_sinks)
    of_mix = q.new_empty(num_rows, num_heads, dtype=torch.float32)
    tile_beta = q.new_empty(slots, num_heads, dtype=torch.float32)
    sinks = q.new_empty(2, slots, num_heads, sum(num_sinks), head_dim, dtype=torch.float32)
    absent = q
    with device_of(q):
        log_sum, mean = _block_statistics(group, tiles, block_size, constants)
        launch(
            rows_gradient_kernel, slots * num_heads,
            q, group.k, group.v, group.grad, *out, of_mix, tile_beta, *sinks,
            *((absent, absent) if state is None else state),
            *((absent, absent) if of_state is None else of_state[:2]),
            log_sum, mean, *map_operands(q_map, absent), *map_operands(k_map, absent),
            absent if alpha is None else alpha, absent if beta is None else beta,
            absent if mix is None else mix, cu_seqlens, tiles.num_sequences, num_heads,
            block_size or span.tokens, *tiles.cut, *num_sinks, 1.0 / math.sqrt(head_dim),
            *group.strides, out.q.stride(0), *row_strides(alpha), *row_strides(beta),
            *row_strides(mix), **constants,
        )  # fmt: skip
        of_beta = _add_over_tiles(group, tiles, tile_beta, sinks)
    return of_beta, of_mix if constants["LLN"] and constants["DIAG"] else None


def _block_statistics(
    group: _Group, tiles: _Tiles, block_size: int | None, constants: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """The log of every row's mass and its g . diag [T, H], which it must know beforehand where its
    keys take several steps. Elsewhere nobody writes or reads them."""
    q = group.q
    num_rows, num_heads, head_dim = q.shape
    log_sum = q.new_empty(num_rows, num_heads, dtype=torch.float32)
    mean = torch.empty_like(log_sum)
    if constants["DIAG"] and not constants["ONE_STEP"]:
        launch(
            diag_rows_kernel, tiles.slots * num_heads,
            q, group.k, group.v, group.grad, log_sum, mean, tiles.cu_seqlens, tiles.num_sequences,
            num_heads, block_size, *tiles.cut, *tiles.num_sinks, 1.0 / math.sqrt(head_dim),
            *group.strides, **diag_rows_constants(constants),
        )  # fmt: skip
    return log_sum, mean


def _add_over_tiles(group: _Group, tiles: _Tiles, tile_beta: Tensor, sinks: Tensor) -> Tensor:
    """Adds what the tiles found for sinks to these rows' gradients, and returns the sum of what
    they found for beta [B, H], which nobody fills without LLN."""
    num_heads, head_dim = group.q.shape[1:]
    of_beta = tile_beta.new_empty(tiles.num_sequences, num_heads)
    if group.state is not None:
        launch(
            add_tiles_kernel, tiles.num_sequences * num_heads,
            tile_beta, tiles.cu_seqlens, of_beta, num_heads, *tiles.cut, BT=ADDED_NUMBERS,
        )  # fmt: skip
    for parts, gradient in zip(sinks, group.out[1:], strict=True):
        launch(
            add_to_sinks_kernel, tiles.num_sequences * num_heads * sum(tiles.num_sinks),
            parts, gradient, tiles.cu_seqlens, num_heads, *tiles.cut, *tiles.num_sinks,
            gradient.stride(0), **add_to_sinks_constants(head_dim),
        )  # fmt: skip
    return of_beta


def _key_weight(
    k: Tensor,
    v: Tensor,
    state: LLNState,
    of_state: StateGradient,
    beta: Tensor,
    cu_seqlens: Tensor,
    k_map: Map | None,
) -> Tensor | None:
    if k_map is None or k_map[0] is None:
        return None
    num_rows, num_heads, head_dim = k.shape
    num_sequences = cu_seqlens.numel() - 1
    constants = key_map_constants(head_dim, k.dtype, family_of(k.device))
    slots = num_slots(num_rows, num_sequences, constants["PIECE"], 1)
    parts = k.new_zeros(slots, num_heads, head_dim, head_dim, dtype=torch.float32)
    with device_of(k):
        launch(
            key_map_gradient_kernel,
            slots * num_heads * triton.cdiv(head_dim, constants["BC"]),
            k, v, *map_operands(k_map, k), beta, cu_seqlens, state.log_mass, *of_state[:2], parts,
            num_sequences, num_heads, *k.stride()[:2], *v.stride()[:2], *beta.stride(),
            **constants,
        )  # fmt: skip
    return parts.sum(0)
