"""Attentions that take one sequence at a time, over packed ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import torch
from torch import Tensor

from kernels.attention import PackedSequences

OneSequence = Callable[[Tensor, Tensor, Tensor], Tensor]


def by_sequence(
    attend: OneSequence, q: Tensor, k: Tensor, v: Tensor, packed: PackedSequences
) -> Tensor:
    """Runs each sequence on its own, in at least float32: [T, H, D], in the dtype of v."""
    wide_q, wide_k, wide_v = (rows if _is_wide(rows) else rows.float() for rows in (q, k, v))
    parts = [attend(wide_q[at], wide_k[at], wide_v[at]) for at in _sequences(packed)]
    return (torch.cat(parts) if parts else wide_v).to(v.dtype)


def _sequences(packed: PackedSequences) -> Iterator[slice]:
    for start, end in pairwise(packed.host_bounds()):
        if end > start:
            yield slice(start, end)


def _is_wide(rows: Tensor) -> bool:
    return rows.dtype in (torch.float32, torch.float64)
