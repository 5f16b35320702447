"""What tells the heads of a small encoder apart: how far they look, and what pruning goes by.

Each is a number for every head: [layers, H].

- `magnitude`: the norm of a head's weights, of queries, keys, values and of its output.
- `pattern_fisher`: the mean trace of diag(a) - a a^T, the Fisher matrix of a row of the pattern in
  its logits, which "Fisher Information Matrix Approximation" has as the metric of a head's scale.
- `gate_fisher`: the mean square of the loss's gradient in a gate on the head's output, example by
  example: the diagonal of the empirical Fisher matrix, and so about what the loss gains without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from engine.experiments.encoder import SmallEncoder

LossOfExample = Callable[[], Tensor]


@torch.no_grad()
def magnitude(model: SmallEncoder) -> Tensor:
    found = []
    for layer in model.each_layer():
        own = layer.to_qkv.weight.view(3, layer.heads, -1).square().sum((0, 2))
        out = layer.from_heads.weight.view(model.shape.width, layer.heads, -1).square().sum((0, 2))
        found.append((own + out).sqrt())
    return torch.stack(found)


@torch.no_grad()
def pattern_fisher(model: SmallEncoder, texts: Iterable[Tensor]) -> Tensor:
    return _mean_of_patterns(model, texts, lambda matrix: 1 - matrix.square().sum(-1))


@torch.no_grad()
def mean_distance(model: SmallEncoder, texts: Iterable[Tensor]) -> Tensor:
    """E|i - j|, the scale of a head, in tokens."""

    def of_rows(matrix: Tensor) -> Tensor:
        at = torch.arange(matrix.shape[-1], dtype=matrix.dtype)
        return (matrix * (at[:, None] - at).abs()).sum(-1)

    return _mean_of_patterns(model, texts, of_rows)


def _mean_of_patterns(
    model: SmallEncoder, texts: Iterable[Tensor], of_rows: Callable[[Tensor], Tensor]
) -> Tensor:
    """The mean over rows and texts [N] of a figure of each row of the pattern [H, N, N]."""
    by_text = [
        torch.stack(
            [of_rows(attention.matrix(q, k)).mean(-1) for attention, q, k in model.heads_of(text)]
        )
        for text in (one[None] for one in texts)
    ]
    return torch.stack(by_text).mean(0)


def gate_fisher(model: SmallEncoder, next_loss: LossOfExample, examples: int) -> Tensor:
    gates = [torch.ones(layer.heads, requires_grad=True) for layer in model.each_layer()]
    model.set_gates(gates)
    total = torch.zeros(len(gates), len(gates[0]))
    for _ in range(examples):
        total += torch.stack(torch.autograd.grad(next_loss(), gates)).square()
    return total / examples
