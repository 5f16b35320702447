"""Xiong et al., "Nystromformer" (2021): softmax through landmarks, the means of segments.

out = softmax(q k~^T) pinv(softmax(q~ k~^T)) softmax(q~ k^T) v, the inverse by the paper's six
iterations. Its depthwise convolution of v has weights to learn and is left out. A sequence no
longer than its landmarks is attended to by softmax itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.model.baselines.base import by_sequence, scores, segment_means
from kernels.attention import PackedSequences

ITERATIONS = 6


@dataclass(frozen=True)
class Nystromformer:
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
