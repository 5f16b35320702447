"""The instruments' float64 reference: dense, from the attention matrices of their definitions."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from kernels.attention import arguments
from kernels.attention.arguments import Map
from kernels.attention.packed_sequences import check_cu_seqlens
from kernels.attention.reference import (
    lln_matrix,
    scaled_rows,
    softmax_matrix,
    visible_keys,
)
from kernels.instruments.question import Moments, RowStatistics


def row_statistics(
    q: Tensor,
    k: Tensor,
    *,
    kind: str,
    alpha: float | Tensor = 1.0,
    beta: float | Tensor = 1.0,
    mix: float | Tensor = 0.5,
    cu_seqlens: Tensor | None = None,
    block_size: int = 64,
    num_sinks: int | tuple[int, int] = 0,
    q_map: Map | None = None,
    k_map: Map | None = None,
) -> RowStatistics:
    q, k = q.double(), k.double()
    packed = check_cu_seqlens(cu_seqlens, q)
    scaled_q = scaled_rows("alpha", alpha, q, packed, q_map)
    scaled_k = scaled_rows("beta", beta, k, packed, k_map)
    share = arguments.check_mix(mix, arguments.RowsForm.of(q)).expand(q.shape[:2])
    found = []
    for start, end in itertools.pairwise(packed.host_bounds()):
        rows = slice(start, end)
        visible = visible_keys(end - start, block_size, arguments.check_sinks(num_sinks), q.device)
        if kind == "softmax":
            matrix = softmax_matrix(q[rows], k[rows])
        else:
            matrix = lln_matrix(scaled_q[rows], scaled_k[rows])
        if kind == "lln_diag":
            lln_share = share[rows].t().unsqueeze(-1)
            diag = softmax_matrix(q[rows], k[rows], visible)
            matrix = lln_share * matrix + (1 - lln_share) * diag
        found.append(_statistics(matrix))
    return RowStatistics(*(torch.cat(parts, dim=-2) for parts in zip(*found, strict=True)))


def _statistics(matrix: Tensor) -> RowStatistics:
    logs = matrix.log()
    mean = logs.mean(-1, keepdim=True)
    moments = [mean.squeeze(-1), *((logs - mean).pow(power).mean(-1) for power in (2, 3, 4))]
    return RowStatistics(
        entropy=torch.special.entr(matrix).sum(-1).t(),
        sum_of_squares=matrix.square().sum(-1).t(),
        log_moments=torch.stack(moments).transpose(1, 2),
    )


def moments(x: Tensor, cu_seqlens: Tensor | None = None) -> Moments:
    x = x.double()
    bounds = check_cu_seqlens(cu_seqlens, x).host_bounds()
    sequences = [x[start:end] for start, end in itertools.pairwise(bounds)]
    return Moments(
        mean=torch.stack([rows.mean(0) for rows in sequences]),
        variance=torch.stack([(rows - rows.mean(0)).square().mean(0) for rows in sequences]),
        gram=torch.stack([torch.einsum("thc,thd->hcd", rows, rows) for rows in sequences]),
    )
