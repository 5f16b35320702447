"""LLN+Diag in torch operations: for CPUs, and for gradients on any device.

ragged.py makes batches of equal width out of ragged sequences. Loops go over the lengths that
blocks have, not over sequences, blocks or tokens, and nothing is N x N beyond one block.

Rows of 16 bits are computed with in float32, except in block_softmax.py.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.attention.arguments import AffineMap, Sinks
from kernels.attention.block_softmax import block_softmax
from kernels.attention.packed_sequences import PackedSequences
from kernels.attention.processor import widen
from kernels.attention.ragged import (
    SpanBatch,
    gather_each,
    piece_batches,
    scatter_each,
)
from kernels.attention.state import LLNState

PIECE_ROWS = 1024
"""Rows summed in one product; their boundaries count from the sequence's own start."""


def lln_diag(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    alpha: Tensor,
    beta: Tensor,
    mix: Tensor,
    packed: PackedSequences,
    block_size: int,
    sinks: Sinks,
    q_map: AffineMap | None,
    k_map: AffineMap | None,
) -> Tensor:
    state = lln_state(k, v, beta=beta, packed=packed, k_map=k_map)
    lln = lln_read(q, state, alpha=alpha, packed=packed, q_map=q_map)
    diag = block_softmax(q, k, v, packed=packed, block_size=block_size, sinks=sinks)
    return mix_branches(diag, lln, mix)


def mix_branches(diag: Tensor, lln: Tensor, mix: Tensor) -> Tensor:
    """mix * lln + (1 - mix) * diag, written into `diag` where no gradient is needed."""
    diag, lln = widen(diag), widen(lln)
    share = mix.to(diag.dtype).unsqueeze(-1).expand_as(diag)
    if torch.is_grad_enabled() and any(x.requires_grad for x in (diag, lln, mix)):
        return torch.lerp(diag, lln, share)
    return diag.lerp_(lln, share)


def lln_state(
    k: Tensor, v: Tensor, *, beta: Tensor, packed: PackedSequences, k_map: AffineMap | None
) -> LLNState:
    k, v = widen(k), widen(v)
    batches = piece_batches(packed.host_bounds(), PIECE_ROWS, k.device)
    pieces = [
        _piece_state(*rows, beta, k_map)
        for rows in zip(batches, gather_each(batches, k), gather_each(batches, v), strict=True)
    ]
    if not pieces:
        return _empty_state(k, packed.count)
    owners = torch.cat([batch.owners for batch in batches])
    together = LLNState(*(torch.cat(parts) for parts in zip(*pieces, strict=True)))
    state = _sum_by_owner(together, owners, packed.count)
    if k_map is None:
        return state
    # A bias multiplies every key of a channel alike: it moves the channel's mass, not its mean.
    return LLNState(state.log_mass + beta.unsqueeze(-1) * k_map.bias, state.value)


def lln_read(
    q: Tensor,
    state: LLNState,
    *,
    alpha: Tensor,
    packed: PackedSequences,
    q_map: AffineMap | None,
) -> Tensor:
    q, channel_logits = widen(q), state.log_mass
    if q_map is not None:
        channel_logits = channel_logits + alpha.unsqueeze(-1) * q_map.bias
    batches = piece_batches(packed.host_bounds(), PIECE_ROWS, q.device)
    reads = (
        _read_piece(batch, piece_q, state, channel_logits, alpha, q_map)
        for batch, piece_q in zip(batches, gather_each(batches, q), strict=True)
    )
    return scatter_each(batches, reads, q)


def _read_piece(
    batch: SpanBatch,
    q: Tensor,  # [n, w, H, D]
    state: LLNState,
    channel_logits: Tensor,
    alpha: Tensor,
    q_map: AffineMap | None,
) -> Tensor:
    log_mass = channel_logits[batch.owners].transpose(0, 1).unsqueeze(2)  # [H, n, 1, D]
    logits = _scaled_by_head(q, q_map, _of_spans(alpha, batch), log_mass)
    read = logits.softmax(-1) @ state.value[batch.owners].transpose(0, 1)
    return read.permute(1, 2, 0, 3)


def _piece_state(
    batch: SpanBatch,
    k: Tensor,  # [n, w, H, D]
    v: Tensor,
    beta: Tensor,
    k_map: AffineMap | None,
) -> LLNState:
    scores = _scaled_by_head(k, k_map, _of_spans(beta, batch))
    if bool(torch.isneginf(scores.detach().amin(2)).any()):
        # A key of minus infinity would weigh nothing and be hidden.
        scores = scores.masked_fill(torch.isneginf(scores), torch.nan)
    if batch.padding is not None:
        scores = scores.masked_fill(batch.padding[:, :, None], -torch.inf)
    peak = scores.detach().amax(2, keepdim=True)  # [H, n, 1, D]
    # The running maximum of each channel keeps exp within (0, 1] at any finite input.
    weights = _exp_shifted(scores, peak)
    summed = weights.transpose(2, 3) @ v.permute(2, 0, 1, 3)  # [H, n, D, D]
    # 0 times infinity or NaN is NaN: so a value that is not finite makes everything read from the
    # state NaN, not only its own column.
    mass = weights.sum(2) + (summed.detach() * 0.0).sum(-1)  # [H, n, D]
    log_mass, value = peak.squeeze(2) + mass.log(), summed / mass.unsqueeze(-1)
    return LLNState(log_mass.transpose(0, 1), value.transpose(0, 1))


def _exp_shifted(scores: Tensor, peak: Tensor) -> Tensor:
    if scores.requires_grad:
        return (scores - peak).exp()
    return scores.sub_(peak).exp_()


def _empty_state(k: Tensor, num_sequences: int) -> LLNState:
    _, num_heads, head_dim = k.shape
    shape = (num_sequences, num_heads, head_dim)
    return LLNState(k.new_full(shape, -torch.inf), k.new_zeros(*shape, head_dim))


def _sum_by_owner(pieces: LLNState, owners: Tensor, num_sequences: int) -> LLNState:
    """Pieces merged into their sequences, in the order they come."""
    if owners.numel() == num_sequences and bool((owners.diff() > 0).all()):
        return pieces
    log_mass, value = pieces
    index = owners[:, None, None].expand_as(log_mass)
    floor = log_mass.new_full((num_sequences, *log_mass.shape[1:]), -torch.inf)
    peak = floor.scatter_reduce(0, index, log_mass.detach(), "amax")
    weights = (log_mass - peak[owners]).exp()
    mass = torch.zeros_like(peak).index_add(0, owners, weights)
    summed = value.new_zeros(num_sequences, *value.shape[1:]).index_add(
        0, owners, weights.unsqueeze(-1) * value
    )
    filled = mass.masked_fill(mass == 0, 1.0)  # a sequence without rows has no mass
    return LLNState(peak + filled.log(), summed / filled.unsqueeze(-1))


def _scaled_by_head(
    x: Tensor,  # [n, w, H, D]
    affine: AffineMap | None,
    scale: Tensor,  # [H, n, 1, 1]
    plus: Tensor | None = None,  # [H, n, 1, D]
) -> Tensor:
    """x W scale + plus of each head as a tensor of its own: [H, n, w, D].

    In this order everything that follows is contiguous, and products copy nothing. The caller
    adds the bias to the channels' logits.
    """
    out: Tensor | None
    if affine is None or affine.weight is None:
        mapped = x.permute(2, 0, 1, 3)
        out = torch.empty(mapped.shape, dtype=x.dtype, device=x.device)
    else:
        mapped = x.flatten(0, 1).transpose(0, 1) @ affine.weight  # [H, n * w, D]
        out = mapped = mapped.view(len(mapped), *x.shape[:2], x.shape[-1])
    if any(part.requires_grad for part in (mapped, scale, plus) if part is not None):
        mapped, out = mapped.contiguous(), None
    if plus is None:
        return torch.mul(mapped, scale, out=out)
    return torch.addcmul(plus, mapped, scale, out=out)


def _of_spans(scale: Tensor, batch: SpanBatch) -> Tensor:
    """A number for every span and head, from those of every sequence: [H, n, 1, 1]."""
    return scale[batch.owners].T[:, :, None, None]
