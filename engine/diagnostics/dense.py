"""What can be read off a whole attention matrix: for figures, claims and tests, at small N only."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.diagnostics.blocks import Blocks
from engine.diagnostics.factors import lln_factors
from engine.diagnostics.lapack import eigenvalues
from engine.diagnostics.rows import HeadRows
from engine.diagnostics.statistics import entropy_of_probabilities
from engine.diagnostics.view import HeadView


def attention_matrix(view: HeadView) -> Tensor:
    """Every row of every head, in float64: [H, N, N]."""
    factors = lln_factors(view) if view.has_channels else None
    reader = HeadRows(view, factors, Blocks(view) if view.has_blocks else None)
    return reader.full(torch.arange(view.num_tokens, device=view.q.device))


def softmax_matrix(q: Tensor, k: Tensor) -> Tensor:
    """Softmax attention of one head's queries and keys [N, D]: [N, N]."""
    view = HeadView(q=q.unsqueeze(1), k=k.unsqueeze(1), attention="softmax")
    return attention_matrix(view)[0]


def lln_matrix(q: Tensor, k: Tensor, alpha: float, beta: float) -> Tensor:
    """LLN attention of one head's queries and keys [N, D]: [N, N]."""
    view = HeadView(
        q=q.unsqueeze(1),
        k=k.unsqueeze(1),
        attention="lln",
        alpha=torch.tensor([alpha], dtype=torch.float64),
        beta=torch.tensor([beta], dtype=torch.float64),
    )
    return attention_matrix(view)[0]


def mean_row_entropy(matrix: Tensor) -> Tensor:
    """In nats: [...] of matrices [..., N, N]."""
    return entropy_of_probabilities(matrix).mean(-1)


def second_modulus(matrix: Tensor) -> Tensor:
    """|lambda_2|: [...] of stochastic matrices [..., N, N], N > 1."""
    return eigenvalues(matrix).abs().topk(2).values[..., 1]


def log_variance(matrix: Tensor) -> Tensor:
    """The variance of log P over all entries: [...] of matrices [..., N, N]."""
    return matrix.log().flatten(-2).var(-1)


def centred(matrix: Tensor) -> Tensor:
    """P without its mean row, whose spectral norm bounds |lambda_2|."""
    return matrix - matrix.mean(-2, keepdim=True)
