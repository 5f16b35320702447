"""Other attentions to compare with: softmax and published alternatives to it.

Each takes packed rows, (q, k, v, packed) -> out, and is bidirectional within each sequence. None
has parameters to learn, so all run on any checkpoint's queries and keys. `matrix` is the formula
written out densely. To add one, write it here and add it to `BASELINES`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from types import MappingProxyType
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from engine.errors import find_named
from kernels.attention import (
    PackedSequences,
    block_diagonal_attention,
    lln_attention,
    lln_diag_attention,
    softmax_attention,
)
from kernels.attention.arguments import Sinks
from kernels.attention.reference import lln_matrix, softmax_matrix, visible_keys


class Baseline(Protocol):
    """An attention without parameters."""

    @property
    def name(self) -> str: ...

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, packed: PackedSequences) -> Tensor:
        """q, k, v and the result are [T, H, D]."""
        ...

    def matrix(self, q: Tensor, k: Tensor) -> Tensor:
        """The dense attention matrix of one sequence, in float64: [H, N, N]."""
        ...


OneSequence = Callable[[Tensor, Tensor, Tensor], Tensor]


def by_sequence(
    attend: OneSequence, q: Tensor, k: Tensor, v: Tensor, packed: PackedSequences
) -> Tensor:
    """Runs each sequence on its own, in at least float32: [T, H, D], in the dtype of v."""
    wide_q, wide_k, wide_v = (rows if _is_wide(rows) else rows.float() for rows in (q, k, v))
    parts = [attend(wide_q[at], wide_k[at], wide_v[at]) for at in _sequences(packed)]
    return (torch.cat(parts) if parts else wide_v).to(v.dtype)


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


def _sequences(packed: PackedSequences) -> Iterator[slice]:
    for start, end in pairwise(packed.host_bounds()):
        if end > start:
            yield slice(start, end)


def _is_wide(rows: Tensor) -> bool:
    return rows.dtype in (torch.float32, torch.float64)


@dataclass(frozen=True)
class Softmax:
    """The reference for all others."""

    name: str = "softmax"

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, packed: PackedSequences) -> Tensor:
        return softmax_attention(q, k, v, cu_seqlens=packed)

    def matrix(self, q: Tensor, k: Tensor) -> Tensor:
        return softmax_matrix(q.double(), k.double())


SOFTMAX = Softmax()


FeatureMap = Callable[[Tensor], Tensor]
"""Maps one sequence's rows [N, H, D] to non-negative features [N, H, F]."""


@dataclass(frozen=True)
class FeatureAttention:
    """Linear attention by a feature map: P_ij proportional to phi(q_i) . phi(k_j).

    A query that shares no feature with any key attends to all keys equally.
    """

    name: str
    features: FeatureMap

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, packed: PackedSequences) -> Tensor:
        return by_sequence(self._attend, q, k, v, packed)

    def matrix(self, q: Tensor, k: Tensor) -> Tensor:
        fq, fk = self.features(q.double()), self.features(k.double())
        kernel = torch.einsum("ihf,jhf->hij", fq, fk)
        mass = kernel.sum(-1, keepdim=True)
        return torch.where(mass > 0, kernel / _nonzero(mass), 1 / len(k))

    def _attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        fq, fk = self.features(q), self.features(k)
        fk = fk / _nonzero(
            fk.amax((0, 2), keepdim=True)
        )  # cancels out, and keeps the sums in range
        state = torch.einsum("jhf,jhd->hfd", fk, v)
        mass = torch.einsum("ihf,hf->ih", fq, fk.sum(0)).unsqueeze(-1)
        read = torch.einsum("ihf,hfd->ihd", fq, state)
        return torch.where(mass > 0, read / _nonzero(mass), v.mean(0))


def _nonzero(mass: Tensor) -> Tensor:
    """The mass, or 1 where it is 0: those quotients are unused, but need finite gradients."""
    return torch.where(mass > 0, mass, 1)


def _elu_features(rows: Tensor) -> Tensor:
    """Katharopoulos et al., "Transformers are RNNs" (2020): phi(x) = elu(x) + 1."""
    return F.elu(rows) + 1


def _cosformer_features(rows: Tensor) -> Tensor:
    """Qin et al., "cosFormer" (2022): relu features, weighted by cos(pi/2 (i - j) / N).

    cos(a - b) = cos a cos b + sin a sin b turns the weight into twice as many features.
    """
    position = torch.arange(1, len(rows) + 1, dtype=rows.dtype, device=rows.device)
    angle = (math.pi / 2 * position / len(rows))[:, None, None]
    positive = rows.relu()
    return torch.cat([positive * angle.cos(), positive * angle.sin()], dim=-1)


ELU = FeatureAttention("elu", _elu_features)
RELU = FeatureAttention("relu", lambda rows: rows.relu())  # unaffected by the scale of x
# The linear-time counterpart of the kernel (q . k)^2, element by element.
QUADRATIC = FeatureAttention("quadratic", lambda rows: rows.square())
COSFORMER = FeatureAttention("cosformer", _cosformer_features)


@dataclass(frozen=True)
class Performer:
    """Choromanski et al., "Rethinking Attention with Performers" (2021): FAVOR+ positive features.

    phi(x) = exp(w_c . x - |x|^2 / 2) of x = q / D^(1/4), w_c orthogonal Gaussian directions. Then
    phi(q) . phi(k) / F estimates exp(q . k / sqrt(D)) without bias. Like LLN's, these features are
    exponentials, and are read through log sums by channel, which cannot overflow.
    """

    num_features: int = 256
    seed: int = 0
    name: str = "performer"

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, packed: PackedSequences) -> Tensor:
        return by_sequence(self._attend, q, k, v, packed)

    def matrix(self, q: Tensor, k: Tensor) -> Tensor:
        fq, fk = (self._exponents(rows.double()) for rows in (q, k))
        fq, fk = fq - fq.amax(-1, keepdim=True), fk - fk.amax((0, 2), keepdim=True)
        kernel = torch.einsum("ihf,jhf->hij", fq.exp(), fk.exp())
        matrix: Tensor = kernel / kernel.sum(-1, keepdim=True)
        return matrix

    def _attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        exponents = self._exponents(k)
        choice = (self._exponents(q) + exponents.logsumexp(0)).softmax(-1)  # [N, H, F]
        value = torch.einsum("jhf,jhd->hfd", exponents.softmax(0), v)
        return torch.einsum("ihf,hfd->ihd", choice, value)

    def _exponents(self, rows: Tensor) -> Tensor:
        scaled = rows * rows.shape[-1] ** -0.25
        directions = orthogonal_directions(self.num_features, rows.shape[-1], self.seed)
        norm = scaled.square().sum(-1, keepdim=True) / 2
        exponents: Tensor = scaled @ directions.to(scaled).mT - norm
        return exponents


@cache
def orthogonal_directions(count: int, dim: int, seed: int) -> Tensor:
    """Gaussian directions, orthogonal within each group of `dim`: [count, dim]."""
    generator = torch.Generator().manual_seed(seed)
    blocks = []
    for _ in range(-(-count // dim)):
        square = torch.randn(dim, dim, dtype=torch.float64, generator=generator)
        norms = torch.randn(dim, dim, dtype=torch.float64, generator=generator).norm(dim=1)
        blocks.append(torch.linalg.qr(square).Q.mT * norms[:, None])
    return torch.cat(blocks)[:count]


PERFORMER = Performer()


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


@dataclass(frozen=True)
class LLN:
    """LLN attention as in the paper, with fixed alpha and beta; its figure 9 finds both near 2."""

    alpha: float = 2.0
    beta: float = 2.0
    name: str = "lln"

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, packed: PackedSequences) -> Tensor:
        return lln_attention(q, k, v, alpha=self.alpha, beta=self.beta, cu_seqlens=packed)

    def matrix(self, q: Tensor, k: Tensor) -> Tensor:
        return lln_matrix(self.alpha * q.double(), self.beta * k.double())


LLN_ATTENTION = LLN()


@dataclass(frozen=True)
class LLNDiag:
    """LLN+Diag as in the paper: the mean of LLN and softmax within blocks, without sinks."""

    alpha: float = 2.0
    beta: float = 2.0
    block_size: int = 64
    name: str = "lln_diag"

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, packed: PackedSequences) -> Tensor:
        return lln_diag_attention(
            *(q, k, v),
            alpha=self.alpha,
            beta=self.beta,
            cu_seqlens=packed,
            block_size=self.block_size,
        )

    def matrix(self, q: Tensor, k: Tensor) -> Tensor:
        q, k = q.double(), k.double()
        seen = visible_keys(len(q), self.block_size, Sinks(0, 0), q.device)
        return (lln_matrix(self.alpha * q, self.beta * k) + softmax_matrix(q, k, seen)) / 2


LLN_DIAG = LLNDiag()


@dataclass(frozen=True)
class BlockDiagonal:
    """Softmax within blocks alone, without sinks: what LLN+Diag is without its LLN branch."""

    block_size: int = 64
    name: str = "block_diagonal"

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, packed: PackedSequences) -> Tensor:
        return block_diagonal_attention(q, k, v, cu_seqlens=packed, block_size=self.block_size)

    def matrix(self, q: Tensor, k: Tensor) -> Tensor:
        seen = visible_keys(len(q), self.block_size, Sinks(0, 0), q.device)
        return softmax_matrix(q.double(), k.double(), seen)


BLOCK_DIAGONAL = BlockDiagonal()


BASELINES: Mapping[str, Baseline] = MappingProxyType(
    {
        one.name: one
        for one in (
            SOFTMAX,
            ELU,
            RELU,
            QUADRATIC,
            PERFORMER,
            NYSTROMFORMER,
            LINFORMER,
            COSFORMER,
            LLN_ATTENTION,
            LLN_DIAG,
            BLOCK_DIAGONAL,
        )
    }
)


def find_baseline(name: str) -> Baseline:
    return find_named("attention", name, BASELINES, param="attention")
