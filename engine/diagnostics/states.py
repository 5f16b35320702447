"""The states that a layer reads, which all of its heads look at together: worked out once."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.diagnostics.work import Work, shared

_TOKENS_A_STEP = 1_024


class States:
    def __init__(self, x: Tensor, dtype: torch.dtype) -> None:
        self.x = x  # [T, W]
        self.dtype = dtype

    def prepare(self) -> Work[None]:
        """Before heads on several threads look at them."""
        yield from self.mean_square()
        yield from self.gram()
        yield from self.points()

    @shared
    def gram(self) -> Work[Tensor]:
        """X^T X: [1, W, W] in float64."""
        gram = self.x.new_zeros(self.x.shape[1], self.x.shape[1], dtype=torch.float64)
        for part in torch.split(self.x, _TOKENS_A_STEP):
            part = part.to(self.dtype)
            gram += part.mT @ part
            yield
        return gram.unsqueeze(0)

    @shared
    def mean_square(self) -> Work[Tensor]:
        """Of a token's state: []."""
        yield
        parts = [part.double().square().sum() for part in torch.split(self.x, _TOKENS_A_STEP)]
        return torch.stack(parts).sum() / len(self.x)

    @shared
    def points(self) -> Work[Tensor]:
        """The states, each with the square of its length as one column more: [1, T, W + 1]."""
        yield
        return with_squares(self.x.unsqueeze(0)).to(self.dtype)


def with_squares(points: Tensor) -> Tensor:
    """[..., T, W] about their mean, which no spread depends on: [..., T, W + 1]."""
    centred = points - points.mean(-2, keepdim=True)
    return torch.cat([centred, centred.square().sum(-1, keepdim=True)], dim=-1)
