"""Eigenvalues of small matrices, orthonormal columns of tall ones, and block Arnoldi from both.

LAPACK solves dense eigenvalue problems of moderate size fastest on one thread. Its QR iterations
meet at a barrier thousands of times; several threads on busy cores took a hundred times longer.

LAPACK's QR of a tall matrix passes through memory column by column. The Cholesky factor of the
small Gram matrix takes a fraction of the time, and is as good when it is applied twice.

Block Arnoldi finds eigenvalues of an operator on all tokens: the eigenvalues of its projection onto
a Krylov space (Ritz values) converge to its own. The stated error is first-order and cautious: the
residual of the Ritz pair times the condition number of the eigenvalue within the Krylov space. It
cannot account for an eigenvalue that the first vectors hardly contain, so some of them are random.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple, TypeAlias, TypeVar

import torch
from torch import Tensor

from engine.errors import DeviceFailure
from engine.steps import Steps

Solution = TypeVar("Solution")
Apply: TypeAlias = Callable[[Tensor], Steps[Tensor]]

_DidNotConverge: type[Exception] = torch.linalg.LinAlgError  # type: ignore[attr-defined]
_NOISE = (0, 1, 10, 100)  # units of rounding, tried in turn
_SLANT = 0.1
"""How far a first pass may leave the Gram matrix from the identity for a second to correct it."""


def eigenvalues(matrices: Tensor) -> Tensor:
    """The complex eigenvalues of every matrix of a batch, on the CPU: [..., n]."""
    values: Tensor = _solve(torch.linalg.eigvals, matrices)
    return values


def eigenpairs(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Values and unit right eigenvectors as columns, complex, on the CPU: [..., n], [..., n, n]."""
    values, vectors = _solve(torch.linalg.eig, matrices)
    return values, vectors


def leading_parts(matrices: Tensor, ranks: slice) -> Tensor:
    """Real and imaginary parts of the eigenvectors of these ranks in the order of their moduli;
    the parts span the same space. On the CPU: [batch, n, 2 x ranks]."""
    values, vectors = eigenpairs(matrices)
    order = values.abs().argsort(dim=1, descending=True)[:, ranks]
    chosen = vectors.gather(2, order.unsqueeze(1).expand(-1, vectors.shape[1], -1))
    return torch.cat([chosen.real, chosen.imag], dim=2)


def _solve(solver: Callable[[Tensor], Solution], matrices: Tensor) -> Solution:
    """Call LAPACK, if need be with noise of the size of rounding.

    Its iteration may not converge for a matrix that is almost, but not exactly, of rank one, as
    identical tokens give. Noise within its own backward error lets it converge.
    """
    exact = matrices.double().cpu()
    unit = torch.finfo(torch.float64).eps * exact.abs().amax((-2, -1), keepdim=True)
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(exact.shape, generator=generator, dtype=torch.float64)
    for size in _NOISE:
        with suppress(_DidNotConverge), one_thread():
            return solver(exact + size * unit * noise if size else exact)
    raise DeviceFailure(f"no eigenvalues found for matrices of shape {tuple(exact.shape)}")


def condition_numbers(vectors: Tensor, which: Tensor) -> Tensor:
    """1 / cosine between the left and right eigenvector of one eigenvalue a matrix: [batch].

    The columns of `vectors` have unit length, so this is the norm of one row of their inverse. The
    triangular factor suffices for it (and never raises, as an LU factorisation might). It is inf
    for a defective eigenvalue.
    """
    size = vectors.shape[-1]
    with one_thread():
        triangle: Tensor = torch.linalg.qr(vectors, mode="r").R
        wanted = torch.eye(size, dtype=vectors.dtype)[which].unsqueeze(-1)
        row: Tensor = torch.linalg.solve_triangular(triangle.mT, wanted, upper=False)
    norms: Tensor = row.squeeze(-1).norm(dim=-1)
    return norms.nan_to_num(nan=torch.inf)


@contextmanager
def one_thread() -> Iterator[None]:
    """For LAPACK on small matrices and batches of them: oneMKL's batched LU with several threads
    was seen to return pivots of 0."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def orthonormal(columns: Tensor) -> tuple[Tensor, Tensor]:
    """Q and R of [..., N, n], R upper triangular."""
    found = well_conditioned(columns)
    if found is not None:
        return found
    exact = torch.linalg.qr(columns)
    return exact.Q, exact.R


def well_conditioned(columns: Tensor) -> tuple[Tensor, Tensor] | None:
    """Q and R by two Cholesky passes; None if the columns are too nearly dependent for that."""
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


class Ritz(NamedTuple):
    """All Ritz pairs of every head."""

    values: Tensor  # [H, n] complex128
    vectors: Tensor  # [H, n, n] complex128, in terms of the basis, as columns
    residuals: Tensor  # [H, n]

    def error_of(self, which: Tensor) -> Tensor:
        """The error of one eigenvalue a head, inf if it is defective: [H]."""
        conditions = condition_numbers(self.vectors, which)
        residuals = self.residuals.gather(1, which.unsqueeze(1)).squeeze(1)
        return torch.where(residuals > 0, residuals * conditions, 0.0)


class BlockArnoldi:
    """The Krylov spaces of some heads, grown together: A V_m = V_(m + 1) projection."""

    def __init__(self, apply: Apply, start: Tensor, max_passes: int, noise: float = 0.0) -> None:
        """`noise` is how far the image of a unit vector may be off, besides its own rounding."""
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

    def extend(self) -> Steps[None]:
        """Add one pass, orthogonalised twice against all before it to remove rounding."""
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
        if found is None:  # the columns that QR then fills in may not be orthogonal to the basis
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
        """Real vectors that span the first Ritz vectors in an order [H, n]: [H, N, width]."""
        first = order[:, :width].unsqueeze(1).expand(-1, self.size, -1)
        chosen = ritz.vectors.gather(2, first)
        parts = torch.cat([chosen.real, chosen.imag], dim=2)
        leading = torch.linalg.svd(parts, full_matrices=False).U[..., :width]
        spanned: Tensor = self._basis[..., : self.size] @ leading.to(self._basis)
        return spanned
