"""What is measured on: shapes, tensors of them, and the least they cost."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from kernels.bench.clock import Ceiling


@dataclass(frozen=True)
class Shape:
    tokens: int
    num_heads: int
    head_dim: int
    block_size: int = 64
    lengths: tuple[int, ...] = ()  # of the sequences; one of all tokens if there are none

    def bytes_of(self, tensors: float, dtype: torch.dtype) -> float:
        """Of so many tensors of this shape."""
        return tensors * self.tokens * self.num_heads * self.head_dim * dtype.itemsize

    @property
    def forward_flops(self) -> float:
        """State, its reading, and two products with each key of the block."""
        return self.product_flops(2 * self.head_dim + 2 * min(self.block_size, self.tokens))

    def product_flops(self, columns: int) -> float:
        """Of products that multiply every row by so many columns, in all."""
        return 2.0 * self.tokens * self.num_heads * self.head_dim * columns


@dataclass(frozen=True)
class Inputs:
    """Tensors of one shape, made when they are first wanted."""

    shape: Shape
    dtype: torch.dtype
    device: torch.device

    @cached_property
    def rows(self) -> tuple[Tensor, Tensor, Tensor]:
        generator = torch.Generator(self.device).manual_seed(0)
        size = self.shape.tokens, self.shape.num_heads, self.shape.head_dim
        q, k, v = (
            torch.randn(size, generator=generator, device=self.device, dtype=self.dtype)
            for _ in range(3)
        )
        return q, k, v

    @cached_property
    def leaves(self) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (x.detach().requires_grad_() for x in self.rows)
        return q, k, v

    @cached_property
    def grad(self) -> Tensor:
        return torch.randn_like(self.rows[0])

    @cached_property
    def cu_seqlens(self) -> Tensor | None:
        if not self.shape.lengths:
            return None
        bounds = torch.tensor([0, *self.shape.lengths]).cumsum(0, dtype=torch.int32)
        return bounds.to(self.device)

    @cached_property
    def scales(self) -> dict[str, Any]:
        """Of every head its own, on the device."""
        heads = torch.linspace(0.8, 1.2, self.shape.num_heads, device=self.device)
        return {"alpha": heads, "beta": heads.flip(0)}

    @cached_property
    def mix(self) -> Tensor:
        return torch.full((self.shape.num_heads,), 0.3, device=self.device)

    @cached_property
    def gate(self) -> Tensor:
        """A mix of every token's own."""
        return self.mix.repeat(self.shape.tokens, 1)

    @cached_property
    def affine_map(self) -> tuple[Tensor, Tensor]:
        """The identity, which costs what any other map does."""
        num_heads, width = self.shape.num_heads, self.shape.head_dim
        weight = torch.eye(width, device=self.device).repeat(num_heads, 1, 1)
        return weight, torch.zeros(num_heads, width, device=self.device)


def floor_seconds(
    shape: Shape, tensors: float, dtype: torch.dtype, ceiling: Ceiling, *, flops: float = 0.0
) -> float:
    """Reading and writing so many tensors; or the arithmetic, where it weighs more."""
    moved = shape.bytes_of(tensors, dtype) / ceiling.bytes_per_s
    return max(moved, flops / ceiling.flops_per_s)


def forward_floor(shape: Shape, dtype: torch.dtype, ceiling: Ceiling) -> float:
    """Six tensors; blocks may be large enough for the arithmetic to weigh more."""
    return floor_seconds(shape, 6, dtype, ceiling, flops=shape.forward_flops)
