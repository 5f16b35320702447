"""What a baseline is, and what they share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from kernels.attention import PackedSequences


class Baseline(Protocol):
    @property
    def name(self) -> str: ...

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, packed: PackedSequences) -> Tensor:
        """q, k, v and the answer are [T, H, D]."""
        ...

    def matrix(self, q: Tensor, k: Tensor) -> Tensor:
        """The attention of one sequence, dense, in float64: [H, N, N]."""
        ...


OneSequence = Callable[[Tensor, Tensor, Tensor], Tensor]


def by_sequence(
    attend: OneSequence, q: Tensor, k: Tensor, v: Tensor, packed: PackedSequences
) -> Tensor:
    """Each sequence by itself, computed in at least float32: [T, H, D] as v."""
    wide_q, wide_k, wide_v = (rows if _is_wide(rows) else rows.float() for rows in (q, k, v))
    parts = [attend(wide_q[at], wide_k[at], wide_v[at]) for at in _sequences(packed)]
    return (torch.cat(parts) if parts else wide_v).to(v.dtype)


def scores(q: Tensor, k: Tensor) -> Tensor:
    """q . k / sqrt(D): [H, N, M] of q [N, H, D] and k [M, H, D]."""
    return torch.einsum("ihd,jhd->hij", q, k) / math.sqrt(q.shape[-1])


def segment_means(rows: Tensor, count: int) -> Tensor:
    """Means over `count` runs of neighbouring rows, as equal in length as can be: [count, ...]."""
    segment = segment_of(len(rows), count, rows.device)
    sums = rows.new_zeros(count, *rows.shape[1:]).index_add(0, segment, rows)
    sizes = torch.bincount(segment, minlength=count).to(rows.dtype)
    return sums / sizes.view(-1, *(1,) * (rows.dim() - 1))


def segment_of(length: int, count: int, device: torch.device | None = None) -> Tensor:
    """Which of `count` <= length segments each row belongs to: [length]."""
    return torch.arange(length, device=device) * count // length


def _sequences(packed: PackedSequences) -> Iterator[slice]:
    for start, end in pairwise(packed.host_bounds()):
        if end > start:
            yield slice(start, end)


def _is_wide(rows: Tensor) -> bool:
    return rows.dtype in (torch.float32, torch.float64)
