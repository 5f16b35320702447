"""The float64 reference: slow, obvious, dense. Tests and benchmarks compare everything with it.

`dtype` is that of the arithmetic. In a narrower one these functions are plain torch: an
implementation's error is compared with theirs.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from kernels.attention import arguments
from kernels.attention.arguments import Gate, Map, RowsForm, Sinks
from kernels.attention.packed_sequences import PackedSequences, check_cu_seqlens
from kernels.attention.state import LLNState


def lln_diag_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    alpha: float | Tensor,
    beta: float | Tensor,
    mix: float | Tensor | Gate = 0.5,
    mix_scale: float | Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    block_size: int = 64,
    num_sinks: int | tuple[int, int] = 0,
    q_map: Map | None = None,
    k_map: Map | None = None,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """mix * LLN + (1 - mix) * Diag."""
    q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    lln = lln_attention(
        *(q, k, v),
        alpha=alpha,
        beta=beta,
        cu_seqlens=cu_seqlens,
        q_map=q_map,
        k_map=k_map,
        dtype=dtype,
    )
    diag = block_diagonal_attention(
        *(q, k, v),
        cu_seqlens=cu_seqlens,
        block_size=block_size,
        num_sinks=num_sinks,
        dtype=dtype,
    )
    packed = check_cu_seqlens(cu_seqlens, q)
    share = lln_shares(q, packed, mix=mix, mix_scale=mix_scale).unsqueeze(-1)
    return share * lln + (1 - share) * diag


def lln_shares(
    q: Tensor,
    packed: PackedSequences,
    *,
    mix: float | Tensor | Gate,
    mix_scale: float | Tensor | None,
) -> Tensor:
    """LLN's share in every token's output: [H] or [T, H]."""
    form = RowsForm.of(q)
    share = arguments.check_mix_or_gate(mix, form)
    if isinstance(share, Gate):
        share = torch.sigmoid(torch.einsum("thd,hd->th", q, share.weight) + share.bias)
    factor = arguments.check_mix_scale(mix_scale, form, packed.count)
    if factor is None:
        return share
    lengths = torch.diff(torch.tensor(packed.host_bounds(), device=q.device))
    return share * factor.expand(packed.count).repeat_interleave(lengths).unsqueeze(-1)


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
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """LLN by its definition: a row-normalised kernel of exp features."""
    q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    packed = check_cu_seqlens(cu_seqlens, q)
    scaled_q = scaled_rows("alpha", alpha, q, packed, q_map)
    scaled_k = scaled_rows("beta", beta, k, packed, k_map)
    out = torch.empty_like(v)
    for rows in _sequences(packed):
        out[rows] = _heads(lln_matrix(scaled_q[rows], scaled_k[rows]), v[rows])
    return out


def block_diagonal_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    cu_seqlens: Tensor | None = None,
    block_size: int = 64,
    num_sinks: int | tuple[int, int] = 0,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Softmax over the query's own block and the sequence's sinks, each key once."""
    arguments.check_block_size(block_size)
    sinks = arguments.check_sinks(num_sinks)
    q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    out = torch.empty_like(v)
    for rows in _sequences(check_cu_seqlens(cu_seqlens, q)):
        visible = visible_keys(rows.stop - rows.start, block_size, sinks, q.device)
        out[rows] = _heads(softmax_matrix(q[rows], k[rows], visible), v[rows])
    return out


def sliding_window_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    half_window: int,
    cu_seqlens: Tensor | None = None,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Softmax over the keys of the same sequence at most `half_window` tokens away."""
    q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    out = torch.empty_like(v)
    for rows in _sequences(check_cu_seqlens(cu_seqlens, q)):
        at = torch.arange(rows.stop - rows.start, device=q.device)
        visible = (at[:, None] - at[None, :]).abs() <= half_window
        out[rows] = _heads(softmax_matrix(q[rows], k[rows], visible), v[rows])
    return out


def softmax_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    cu_seqlens: Tensor | None = None,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Full attention within each sequence."""
    q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    out = torch.empty_like(v)
    for rows in _sequences(check_cu_seqlens(cu_seqlens, q)):
        out[rows] = _heads(softmax_matrix(q[rows], k[rows]), v[rows])
    return out


def lln_state(
    k: Tensor,
    v: Tensor,
    *,
    beta: float | Tensor,
    cu_seqlens: Tensor | None = None,
    k_map: Map | None = None,
) -> LLNState:
    """Channel masses and channel means of every sequence, in float64."""
    k, v = k.double(), v.double()
    packed = check_cu_seqlens(cu_seqlens, k)
    scaled_k = scaled_rows("beta", beta, k, packed, k_map)
    _, num_heads, head_dim = k.shape
    log_mass = k.new_full((packed.count, num_heads, head_dim), -math.inf)
    value = k.new_zeros(packed.count, num_heads, head_dim, head_dim)
    for index, rows in enumerate(_sequences(packed)):
        if rows.stop > rows.start:
            scores = scaled_k[rows]
            log_mass[index] = scores.logsumexp(0)
            kappa = scores.softmax(0)
            value[index] = torch.einsum("jhc,jhd->hcd", kappa, v[rows])
    return LLNState(log_mass, value)


def lln_read(
    q: Tensor,
    state: LLNState,
    *,
    alpha: float | Tensor,
    cu_seqlens: Tensor | None = None,
    q_map: Map | None = None,
) -> Tensor:
    """What every query reads from its sequence's state, in float64."""
    q = q.double()
    packed = check_cu_seqlens(cu_seqlens, q)
    scaled_q = scaled_rows("alpha", alpha, q, packed, q_map)
    out = torch.empty_like(q)
    for index, rows in enumerate(_sequences(packed)):
        pi = (scaled_q[rows] + state.log_mass[index].double()).softmax(-1)
        out[rows] = torch.einsum("ihc,hcd->ihd", pi, state.value[index].double())
    return out


def softmax_matrix(q: Tensor, k: Tensor, visible: Tensor | None = None) -> Tensor:
    """Softmax attention of one sequence, dense: [H, N, N]."""
    scores = torch.einsum("ihd,jhd->hij", q, k) / math.sqrt(q.shape[-1])
    if visible is not None:
        scores = scores.masked_fill(~visible, -math.inf)
    return scores.softmax(-1)


def lln_matrix(scaled_q: Tensor, scaled_k: Tensor) -> Tensor:
    """LLN attention of one sequence from alpha q and beta k, dense: [H, N, N].

    The plain quotient sum_c fq_ic fk_jc / sum_jc fq_ic fk_jc, evaluated through logarithms so
    that the truth stays finite where exp would not.
    """
    log_kernel = [
        torch.logsumexp(some_q[:, None] + scaled_k[None, :], dim=-1)  # [some i, j, H]
        for some_q in torch.split(scaled_q, 32)
    ]
    return torch.cat(log_kernel).permute(2, 0, 1).softmax(-1)


def visible_keys(
    length: int, block_size: int, sinks: Sinks, device: torch.device | None = None
) -> Tensor:
    """Which keys j a query i may attend to in Diag: [N, N] bool."""
    position = torch.arange(length, device=device)
    same_block = position[:, None] // block_size == position[None, :] // block_size
    sink = (position < sinks.first) | (position >= length - sinks.last)
    return same_block | sink[None, :]


def scaled_rows(
    name: str,
    scale: float | Tensor,
    rows: Tensor,
    packed: PackedSequences,
    affine: Map | None,
) -> Tensor:
    """alpha (q W + b), or the same with beta and k: [T, H, D]."""
    form = RowsForm.of(rows)
    checked = arguments.check_map(f"{name} map", affine, form)
    if checked is not None:
        if checked.weight is not None:
            rows = torch.einsum("thc,hcd->thd", rows, checked.weight)
        rows = rows + checked.bias
    lengths = torch.diff(torch.tensor(packed.host_bounds(), device=rows.device))
    per_sequence = arguments.check_scale(name, scale, form, packed.count)  # [B, H]
    return per_sequence.repeat_interleave(lengths, dim=0).unsqueeze(-1) * rows


def _heads(matrix: Tensor, v: Tensor) -> Tensor:
    return torch.einsum("hij,jhd->ihd", matrix, v)


def _sequences(packed: PackedSequences) -> list[slice]:
    bounds = packed.host_bounds()
    return [slice(start, end) for start, end in itertools.pairwise(bounds)]
