"""Softmax within blocks in torch operations, with the sequence's sinks beside each block.

Rows of 16 bits are widened to float32, except on CPUs that multiply tiles of bfloat16.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from kernels.attention.arguments import Sinks
from kernels.attention.packed_sequences import PackedSequences
from kernels.attention.processor import multiplies_bfloat16_tiles, wide, widen
from kernels.attention.ragged import BlockBatch, block_batches, gather_each, scatter_each

_PACKED_COLUMNS = 64
"""Heads of a multiple of these are packed by torch's fused attention where that pays."""
_ROWS_ALWAYS_PACKED = 64
"""For this many rows of a thread it packs, whatever the batch is."""


class OutsideSinks(NamedTuple):
    """Sinks that are not among the packed rows, and that every block sees."""

    k: Tensor  # [S, H, D]
    v: Tensor


def block_softmax(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    packed: PackedSequences,
    block_size: int | None,
    sinks: Sinks,
    outside: OutsideSinks | None = None,
) -> Tensor:
    """Softmax within blocks (None: within whole sequences), and over the sequence's sinks.

    Computed in float32 for rows of 16 bits, or in their own precision where tiles multiply them.
    Returned in float32 where some rows saw sinks besides their block: rounding is left to the
    caller.
    """
    if not _in_tiles(q, k, v):
        q, k, v = widen(q), widen(k), widen(v)
    num_rows = q.shape[0]
    in_one_block = packed.count == 1 and (block_size is None or num_rows <= block_size)
    if num_rows and in_one_block and outside is None:
        return attend_whole(q, k, v)
    batches = block_batches(packed.host_bounds(), block_size, sinks, q.device)
    spans = [batch.spans for batch in batches]
    seen_sinks = [_seen_sinks(batch, k, v, outside) for batch in batches]
    adds_sinks = any(seen is not None for seen in seen_sinks)
    dtype = wide(v.dtype) if adds_sinks else v.dtype
    in_one_pass = _has_logsumexp_kernel(q, k, v)

    def attended() -> Iterator[Tensor]:
        own = (gather_each(spans, x) for x in (q, k, v))
        for seen, *span in zip(seen_sinks, *own, strict=True):
            rows = _for_softmax(*span)
            if not in_one_pass:
                yield _attend(seen, *rows).to(v.dtype)
            elif seen is not None:
                yield _attend_then_add_sinks(seen, *rows)
            else:
                yield _attend_fused(*rows).rows.transpose(1, 2).to(v.dtype)

    if len(spans) == 1 and spans[0].covers(len(v)):
        return next(attended()).flatten(0, 1)
    return scatter_each(spans, (found.to(dtype) for found in attended()), v, dtype)


def _has_logsumexp_kernel(*rows: Tensor) -> bool:
    """The CPU's fused attention returns its row sums, but has no gradient through them."""
    needs_grad = torch.is_grad_enabled() and any(x.requires_grad for x in rows)
    return rows[0].device.type == "cpu" and not needs_grad


def _for_softmax(
    q: Tensor, k: Tensor, v: Tensor, width: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows [n, w, H, D] as softmax takes them: in 16 bits only where that is faster."""
    if _in_tiles(q, k, v) and _packs_alike(width or q.shape[1], q.shape[-1]):
        return q, k, v
    return widen(q), widen(k), widen(v)


def _in_tiles(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether tiles of bfloat16 multiply these rows."""
    return (
        q.dtype is torch.bfloat16 and multiplies_bfloat16_tiles() and _has_logsumexp_kernel(q, k, v)
    )


def _packs_alike(width: int, head_dim: int) -> bool:
    """Whether torch's fused attention packs spans of this width whatever the batch, or in none.

    It packs heads of some sizes where its threads have much to do, and adds up in another order
    then.
    """
    may_pack = head_dim % _PACKED_COLUMNS == 0 and width >= _PACKED_COLUMNS
    return not may_pack or width >= _ROWS_ALWAYS_PACKED * torch.get_num_threads()


def attend_whole(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """One sequence as one block, which needs no layout."""
    heads = (x.transpose(0, 1).unsqueeze(0) for x in (q, k, v))
    return attend_heads(*heads).squeeze(0).transpose(0, 1)


def attend_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same for rows by head, [1, H, T, D]."""
    rows = _for_softmax(q, k, v, q.shape[2])
    return F.scaled_dot_product_attention(*rows).to(v.dtype)


class _SeenSinks(NamedTuple):
    """The sinks that the spans of one batch see beyond their own rows."""

    k: Tensor  # [n, S, H, D]
    v: Tensor
    hidden: Tensor  # [n, S] True where the sink is absent or among the span's own rows


def _seen_sinks(
    batch: BlockBatch, k: Tensor, v: Tensor, outside: OutsideSinks | None
) -> _SeenSinks | None:
    seen = []
    if batch.sinks is not None:
        rows, hidden = batch.sinks.rows, batch.sinks.hidden
        seen.append(_SeenSinks(k[rows], v[rows], hidden))
    if outside is not None:
        all_k, all_v = (x.expand(batch.spans.count, *x.shape) for x in outside)
        seen.append(_SeenSinks(all_k, all_v, torch.zeros_like(all_k[:, :, 0, 0], dtype=torch.bool)))
    if len(seen) < 2:
        return next(iter(seen), None)
    return _SeenSinks(*(torch.cat(parts, dim=1) for parts in zip(*seen, strict=True)))


def _attend(sinks: _SeenSinks | None, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Every span's softmax attention, sinks as additional keys: [n, w, H, D]."""
    mask = None
    if sinks is not None:
        hidden = F.pad(sinks.hidden, (keys.shape[1], 0))[:, None, None]
        mask = torch.zeros_like(hidden, dtype=q.dtype).masked_fill(hidden, -torch.inf)
        keys = torch.cat([keys, widen(sinks.k)], dim=1)
        values = torch.cat([values, widen(sinks.v)], dim=1)
    q, keys, values = (x.transpose(1, 2) for x in (q, keys, values))
    return F.scaled_dot_product_attention(q, keys, values, attn_mask=mask).transpose(1, 2)


def _attend_then_add_sinks(sinks: _SeenSinks, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """The same, with the few sink keys merged in by their share of each row's total mass.

    Appending them to every block would copy all keys and values and break the block's round size.
    """
    attended, log_sum = _attend_fused(q, keys, values)
    q, sink_keys, sink_values = (_by_head(rows) for rows in (q, sinks.k, sinks.v))
    scores = (sink_keys * q.shape[-1] ** -0.5) @ q.transpose(2, 3)  # [n, H, S, w]
    scores.masked_fill_(sinks.hidden[:, None, :, None], -torch.inf)
    # The block is one more choice beside the sinks, of its rows' whole mass.
    shares = _shares(torch.cat([scores, log_sum.unsqueeze(2)], dim=2)).transpose(2, 3)
    merged = shares[..., :-1] @ sink_values  # [n, H, w, D]
    return merged.addcmul_(attended, shares[..., -1:]).transpose(1, 2)


def _by_head(rows: Tensor) -> Tensor:
    """Rows [n, w, H, D] in float32 as [n, H, w, D], so that products copy nothing more."""
    by_head = rows.transpose(1, 2)
    return torch.empty(by_head.shape, dtype=wide(rows.dtype)).copy_(by_head)


def _shares(logits: Tensor) -> Tensor:
    """Softmax over the few choices of dimension 2, from operations that round every element alike.

    torch's own takes another exponential where a thread's part ends.
    """
    weights = (logits - logits.amax(2, keepdim=True)).exp_()
    return weights.div_(weights.sum(2, keepdim=True))


class _Fused(NamedTuple):
    rows: Tensor  # [n, H, w, D] attended
    log_sum: Tensor  # [n, H, w] log of each row's mass


def _attend_fused(q: Tensor, keys: Tensor, values: Tensor) -> _Fused:
    """Softmax within spans by the kernel behind torch's public function: it returns the sums."""
    q, keys, values = (x.transpose(1, 2) for x in (q, keys, values))
    fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default(q, keys, values)
    return _Fused(*fused)
