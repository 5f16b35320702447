"""Softmax attentions through a fixed number of segments of the text: Nystromformer, Linformer.

Each is a `Baseline` of `engine.model.baselines`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.model.by_sequence import by_sequence
from kernels.attention import PackedSequences

ITERATIONS = 6  # for the inverse, as in the paper


@dataclass(frozen=True)
class Nystromformer:
    """Xiong et al., "Nystromformer" (2021): softmax through landmarks, the means of segments.

    out = softmax(q k~^T) pinv(softmax(q~ k~^T)) softmax(q~ k^T) v. The paper's depthwise
    convolution of v has weights to learn and is left out. A sequence no longer than the number of
    landmarks gets softmax itself.
    """

    num_landmarks: int = 64
    name: str = "nystromformer"

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, packed: PackedSequences) -> Tensor:
        return by_sequence(self._attend, q, k, v, packed)

    def matrix(self, q: Tensor, k: Tensor) -> Tensor:
        q, k = q.double(), k.double()
        if len(q) <= self.num_landmarks:
            return scores(q, k).softmax(-1)
        to_landmarks, inverse, from_landmarks = self._factors(q, k)
        return to_landmarks @ inverse @ from_landmarks

    def _attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        values = v.transpose(0, 1)  # [H, N, D]
        if len(q) <= self.num_landmarks:
            return (scores(q, k).softmax(-1) @ values).transpose(0, 1)
        to_landmarks, inverse, from_landmarks = self._factors(q, k)
        return (to_landmarks @ (inverse @ (from_landmarks @ values))).transpose(0, 1)

    def _factors(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[H, N, m], [H, m, m], [H, m, N]."""
        queries, keys = (segment_means(rows, self.num_landmarks) for rows in (q, k))
        between = scores(queries, keys).softmax(-1)
        return scores(q, keys).softmax(-1), pseudo_inverse(between), scores(queries, k).softmax(-1)


def pseudo_inverse(matrix: Tensor) -> Tensor:
    """The paper's third-order iteration, from A^T / (|A|_1 |A|_inf)."""
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    size = matrix.abs().sum(-2).amax(-1) * matrix.abs().sum(-1).amax(-1)
    inverse: Tensor = matrix.mT / size[..., None, None]
    for _ in range(ITERATIONS):
        product = matrix @ inverse
        inner = 15 * identity - product @ (7 * identity - product)
        inverse = 0.25 * inverse @ (13 * identity - product @ inner)
    return inverse


NYSTROMFORMER = Nystromformer()


@dataclass(frozen=True)
class Linformer:
    """Wang et al., "Linformer" (2020): softmax over keys and values projected to a fixed number.

    The projection is the paper's alternative that needs no training: means of segments. A sequence
    no longer than the number of segments gets softmax itself.
    """

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


def scores(q: Tensor, k: Tensor) -> Tensor:
    """q . k / sqrt(D): [H, N, M] of q [N, H, D] and k [M, H, D]."""
    return torch.einsum("ihd,jhd->hij", q, k) / math.sqrt(q.shape[-1])


def segment_means(rows: Tensor, count: int) -> Tensor:
    """Means over `count` runs of neighbouring rows of nearly equal length: [count, ...]."""
    segment = segment_of(len(rows), count, rows.device)
    sums = rows.new_zeros(count, *rows.shape[1:]).index_add(0, segment, rows)
    sizes = torch.bincount(segment, minlength=count).to(rows.dtype)
    return sums / sizes.view(-1, *(1,) * (rows.dim() - 1))


def segment_of(length: int, count: int, device: torch.device | None = None) -> Tensor:
    """The segment of each row, of `count` <= length segments: [length]."""
    return torch.arange(length, device=device) * count // length
