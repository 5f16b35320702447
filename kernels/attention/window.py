"""Softmax attention within a sliding window: what ModernBERT's local layers use.

Queries go in blocks of about half a window, each beside the keys that any of them may see, so the
work is linear in the sequence and nothing larger than a block by its keys is ever held.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional as F

from kernels.attention import arguments, library
from kernels.attention.arguments import ArgumentError, Bounds
from kernels.attention.layout import CPU_BATCH_ROWS

_MIN_BLOCK = 32


@dataclass(frozen=True)
class WindowBatch:
    """Some blocks of queries, and the keys beside each."""

    queries: Tensor  # [n, B] packed rows; beyond a sequence's end its last row again
    kept: Tensor  # [m] the slots of `queries` that are no such repetition
    keys: Tensor  # [n, K] packed rows; outside the sequence any row, hidden by the mask
    visible: Tensor  # [n, 1, B, K]


def sliding_window_attention(
    q: Tensor, k: Tensor, v: Tensor, *, half_window: int, cu_seqlens: Bounds | None = None
) -> Tensor:
    """Softmax over the keys of the same sequence at most `half_window` tokens away, (T, H, D)."""
    arguments.check_rows(q=q, k=k, v=v)
    packed = arguments.check_cu_seqlens(cu_seqlens, q)
    if half_window < 0:
        raise ArgumentError(f"half_window must not be negative, got {half_window}")
    batches = window_batches(packed.host_bounds(), half_window, q.device)
    out = torch.empty_like(v)
    for batch in batches:
        with library.as_wide_as_given(q):
            attended = F.scaled_dot_product_attention(
                q[batch.queries].transpose(1, 2),
                k[batch.keys].transpose(1, 2),
                v[batch.keys].transpose(1, 2),
                attn_mask=batch.visible,
            )
        rows = attended.transpose(1, 2).flatten(0, 1)  # [n * B, H, D]
        out.index_copy_(0, batch.queries.flatten()[batch.kept], rows[batch.kept])
    return out


@lru_cache(maxsize=16)
def window_batches(
    bounds: tuple[int, ...], half_window: int, device: torch.device
) -> tuple[WindowBatch, ...]:
    """Every sequence cut into blocks of queries, some thousand rows a batch."""
    block = max(half_window, _MIN_BLOCK)
    blocks = [
        (start, first, end) for first, end in pairwise(bounds) for start in range(first, end, block)
    ]
    size = max(1, CPU_BATCH_ROWS // block)
    parts = (blocks[at : at + size] for at in range(0, len(blocks), size))
    return tuple(_batch(part, block, half_window, device) for part in parts)


@torch.inference_mode(False)  # the tables outlive the caller's mode and may serve autograd later
def _batch(
    blocks: list[tuple[int, int, int]], block: int, half_window: int, device: torch.device
) -> WindowBatch:
    start, first, end = torch.tensor(blocks).unsqueeze(1).unbind(2)  # each [n, 1]
    slots = start + torch.arange(block)
    queries = torch.minimum(slots, end - 1)
    reach = start - half_window + torch.arange(block + 2 * half_window)
    inside = (reach >= first) & (reach < end)
    near = (reach[:, None, :] - queries[:, :, None]).abs() <= half_window
    return WindowBatch(
        queries=queries.to(device),
        kept=(slots < end).flatten().nonzero().flatten().to(device),
        keys=torch.where(inside, reach, first).to(device),
        visible=(near & inside[:, None, :]).unsqueeze(1).to(device),
    )
