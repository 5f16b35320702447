"""Dense eigenvalue problems of moderate size, which LAPACK solves fastest on one thread.

Its QR iterations meet at a barrier thousands of times; with several threads on cores that others
use too, it was seen to take a hundred times longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

import torch
from torch import Tensor

from engine.errors import DeviceFailure

Solution = TypeVar("Solution")


_DidNotConverge: type[Exception] = torch.linalg.LinAlgError  # type: ignore[attr-defined]
_NOISE = (0, 1, 10, 100)  # units of rounding, tried in turn


def eigenvalues(matrices: Tensor) -> Tensor:
    """Of every matrix of a batch, complex, on the CPU: [..., n]."""
    values: Tensor = _solve(torch.linalg.eigvals, matrices)
    return values


def eigenpairs(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Values and unit right eigenvectors as columns, complex, on the CPU: [..., n], [..., n, n]."""
    values, vectors = _solve(torch.linalg.eig, matrices)
    return values, vectors


def leading_parts(matrices: Tensor, ranks: slice) -> Tensor:
    """Real and imaginary parts of the eigenvectors of these ranks, by the size of their values,
    which span the same space; on the CPU: [batch, n, twice as many]."""
    values, vectors = eigenpairs(matrices)
    order = values.abs().argsort(dim=1, descending=True)[:, ranks]
    chosen = vectors.gather(2, order.unsqueeze(1).expand(-1, vectors.shape[1], -1))
    return torch.cat([chosen.real, chosen.imag], dim=2)


def _solve(solver: Callable[[Tensor], Solution], matrices: Tensor) -> Solution:
    """LAPACK as it stands, or with noise of the size of rounding.

    Its iteration may not converge for a matrix that is almost, but not exactly, of rank one, which
    is what identical tokens give. Noise within its own backward error lets it through.
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
    """1 / cosine of left and right eigenvector of one eigenvalue a matrix: [batch].

    The columns of `vectors` have unit length, so this is the norm of one row of their inverse, for
    which the triangular factor suffices (and never raises, as an LU factorisation might). It is inf
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
    """For LAPACK on small matrices, and for its batches: oneMKL's batched LU of several threads
    was seen to return pivots of 0."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
