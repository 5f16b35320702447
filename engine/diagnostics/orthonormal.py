"""Orthonormal columns for tall matrices, by matrix products alone wherever those are enough.

LAPACK's QR of a tall matrix goes column by column through memory, and takes several times longer
than Cholesky's factor of the small Gram matrix, which is as good when it is made twice.
"""

from __future__ import annotations

import torch
from torch import Tensor

_SLANT = 0.1
"""How far a first pass may leave the Gram matrix from the identity for a second to mend it."""


def orthonormal(columns: Tensor) -> tuple[Tensor, Tensor]:
    """Q and R of [..., N, n], R upper triangular."""
    found = well_conditioned(columns)
    if found is not None:
        return found
    exact = torch.linalg.qr(columns)
    return exact.Q, exact.R


def well_conditioned(columns: Tensor) -> tuple[Tensor, Tensor] | None:
    """The same; None if the columns are too nearly dependent for Cholesky."""
    lengths = columns.norm(dim=-2, keepdim=True)
    if not bool((lengths > 0).all()):
        return None
    first = _cholesky_pass(columns / lengths)
    if first is None:
        return None
    second = _cholesky_pass(first[0])
    if second is None or not bool(((second[1] - _identity(second[1])).abs() < _SLANT).all()):
        return None
    return second[0], second[1] @ first[1] * lengths


def _cholesky_pass(columns: Tensor) -> tuple[Tensor, Tensor] | None:
    triangle, failed = torch.linalg.cholesky_ex(columns.mT @ columns, upper=True)
    if bool(failed.any()):
        return None
    inverse = torch.linalg.solve_triangular(triangle, _identity(triangle), upper=True)
    return columns @ inverse, triangle


def _identity(like: Tensor) -> Tensor:
    return torch.eye(like.shape[-1], dtype=like.dtype, device=like.device).expand_as(like)
