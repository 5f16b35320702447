"""Eigenvalues of an operator on all tokens by block Arnoldi, and what they may be off by.

The eigenvalues of the projection onto the Krylov space (Ritz values) converge to the operator's.
The stated error is first-order and cautious: the residual of the Ritz pair times the eigenvalue's
condition number within the Krylov space. What no error can state is an eigenvalue that the first
vectors hardly contain; some of them are random for that reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from engine.diagnostics.lapack import condition_numbers, eigenpairs
from engine.diagnostics.orthonormal import orthonormal, well_conditioned
from engine.diagnostics.work import Work

Apply: TypeAlias = Callable[[Tensor], Work[Tensor]]


class Ritz(NamedTuple):
    """Of every head, all Ritz pairs."""

    values: Tensor  # [H, n] complex128
    vectors: Tensor  # [H, n, n] complex128, in terms of the basis, as columns
    residuals: Tensor  # [H, n]

    def error_of(self, which: Tensor) -> Tensor:
        """Of one eigenvalue a head, inf where it is defective: [H]."""
        conditions = condition_numbers(self.vectors, which)
        residuals = self.residuals.gather(1, which.unsqueeze(1)).squeeze(1)
        return torch.where(residuals > 0, residuals * conditions, 0.0)


class BlockArnoldi:
    """The Krylov spaces of some heads, grown together: A V_m = V_(m + 1) projection."""

    def __init__(self, apply: Apply, start: Tensor, max_passes: int, noise: float = 0.0) -> None:
        """`noise` is how far the image of a unit vector may be off by rounding, beside its own."""
        self.passes = 0
        self._noise = noise
        self.max_passes = max_passes
        self.width = start.shape[-1]
        self._apply = apply
        heads, tokens, width = start.shape
        columns = max_passes * width
        self._basis = start.new_zeros(heads, tokens, columns + width)
        self._projection = start.new_zeros(heads, columns + width, columns, dtype=torch.float64)
        self._basis[..., :width] = orthonormal(start)[0]

    @property
    def size(self) -> int:
        return self.passes * self.width

    def extend(self) -> Work[None]:
        """One pass, made orthonormal to all before it; twice, for rounding's sake."""
        size, width = self.size, self.width
        known = self._basis[..., : size + width]
        image = (yield from self._apply(known[..., size:].contiguous())).to(known)
        along = known.mT @ image
        rest = image - known @ along
        yield
        leftover = known.mT @ rest
        rest -= known @ leftover
        along += leftover
        yield
        found = well_conditioned(rest)
        if found is None:  # then what the QR fills in may not be orthogonal to what is known
            first, scale = torch.linalg.qr(rest)
            leftover = known.mT @ first
            following, correction = torch.linalg.qr(first - known @ leftover)
            found = following, correction @ scale
            along += leftover @ scale
        columns = slice(size, size + width)
        rows = slice(size + width, size + 2 * width)
        self._basis[..., rows], self._projection[:, rows, columns] = found
        self._projection[:, : size + width, columns] = along
        self.passes += 1
        yield

    def ritz(self) -> Ritz:
        size, width = self.size, self.width
        projection = self._projection[:, : size + width, :size].cpu()
        values, vectors = eigenpairs(projection[:, :size])
        beyond = projection[:, size:, size - width :].to(vectors)
        residuals = (beyond @ vectors[:, size - width :]).norm(dim=1)
        rounding = torch.finfo(self._basis.dtype).eps * values.abs()
        return Ritz(values, vectors, residuals + rounding + self._noise)

    def span(self, ritz: Ritz, order: Tensor, width: int) -> Tensor:
        """Real vectors that span the first Ritz vectors of an order [H, n]: [H, N, width]."""
        first = order[:, :width].unsqueeze(1).expand(-1, self.size, -1)
        chosen = ritz.vectors.gather(2, first)
        parts = torch.cat([chosen.real, chosen.imag], dim=2)
        leading = torch.linalg.svd(parts, full_matrices=False).U[..., :width]
        spanned: Tensor = self._basis[..., : self.size] @ leading.to(self._basis)
        return spanned
