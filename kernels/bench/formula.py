"""LLN+Diag as one would write it in torch: the yardstick of rounding, and torch.compile's input."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F


def lln_diag(
    q: Tensor, k: Tensor, v: Tensor, *, alpha: Tensor, beta: Tensor, mix: Tensor, block_size: int
) -> Tensor:
    """One sequence, [T, H, D]; the last block may be short."""
    score = beta.to(q.dtype).unsqueeze(-1) * k
    pi = (alpha.to(q.dtype).unsqueeze(-1) * q + score.logsumexp(0)).softmax(-1)
    value = torch.einsum("jhc,jhd->hcd", score.softmax(0), v)
    lln = torch.einsum("ihc,hcd->ihd", pi, value)
    share = mix.to(q.dtype).unsqueeze(-1)
    return share * lln + (1 - share) * diag(q, k, v, block_size)


def diag(q: Tensor, k: Tensor, v: Tensor, block_size: int) -> Tensor:
    rest = -len(q) % block_size
    shape = -1, block_size, *q.shape[1:]
    blocks = (F.pad(x, (0, 0, 0, 0, 0, rest)).reshape(shape) for x in (q, k, v))
    block_q, block_k, block_v = blocks  # [n, b, H, D]
    scores = torch.einsum("nihd,njhd->nhij", block_q, block_k) / math.sqrt(q.shape[-1])
    position = torch.arange(len(q) + rest, device=q.device).reshape(-1, block_size)
    hidden = (position >= len(q))[:, None, None, :]
    weights = scores.masked_fill(hidden, -math.inf).softmax(-1)
    # A block is never all padding, so no row is without keys.
    return torch.einsum("nhij,njhd->nihd", weights, block_v).flatten(0, 1)[: len(q)]
