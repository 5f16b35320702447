"""Wang et al., "Linformer" (2020): softmax over keys and values projected to a fixed number.

The projection is one that needs no training, which the paper names beside the learned one: means
of segments. A sequence of no more tokens than that is attended to by softmax itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.model.baselines.base import by_sequence, scores, segment_means, segment_of
from kernels.attention import PackedSequences


@dataclass(frozen=True)
class Linformer:
    num_segments: int = 256
    name: str = "linformer"

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, packed: PackedSequences) -> Tensor:
        return by_sequence(self._attend, q, k, v, packed)

    def matrix(self, q: Tensor, k: Tensor) -> Tensor:
        q, k = q.double(), k.double()
        count = min(self.num_segments, len(k))
        segment = segment_of(len(k), count, k.device)
        membership = torch.eye(count, dtype=k.dtype, device=k.device)[:, segment]
        projection = membership / membership.sum(1, keepdim=True)  # [count, N]
        projected = torch.einsum("sj,jhd->shd", projection, k)
        return scores(q, projected).softmax(-1) @ projection

    def _attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        count = min(self.num_segments, len(k))
        keys, values = (segment_means(rows, count) for rows in (k, v))
        return torch.einsum("his,shd->ihd", scores(q, keys).softmax(-1), values)


LINFORMER = Linformer()
