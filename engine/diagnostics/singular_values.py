"""All singular values of a dense matrix, with pauses.

LAPACK's one call would hold the device for seconds at 2,000 tokens. So the matrix is reduced to two
diagonals by Householder reflections, a column and a row at a time, with a pause after each few
(Golub and Kahan; in panels, as LAPACK's gebrd, so that half of the work is matrix products). The
singular values of two diagonals are the positive eigenvalues of a tridiagonal matrix whose main
diagonal is zero. Bisection finds all of them at once, each to rounding: a Sturm sequence counts how
many lie above a number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from engine.diagnostics.linear_algebra import one_thread
from engine.diagnostics.readings import Floats
from engine.steps import Steps

MAX_SINGLE_CALL = 512
"""Matrices up to this size are left to LAPACK, in one step of some tens of milliseconds."""

_PANEL = 32
_ENTRIES_A_STEP = 2**22
"""Entries of the matrix that are read between two pauses of the reduction."""

_COUNTS_A_STEP = 2**21
_BISECTIONS = 54  # halvings of the range, which leave rounding
_TINY = 1e-290


def singular_values(matrix: Tensor) -> Steps[Tensor]:
    """The singular values [N], descending, of [N, N] in float64, which is overwritten."""
    if len(matrix) <= MAX_SINGLE_CALL:
        yield
        with one_thread():
            values: Tensor = torch.linalg.svdvals(matrix)
        return values
    diagonal, above = yield from bidiagonal(matrix)
    found = yield from bidiagonal_values(diagonal, above)
    return torch.from_numpy(found).to(matrix.device)


def bidiagonal(matrix: Tensor) -> Steps[tuple[Floats, Floats]]:
    """The main diagonal [N] and the one above it [N - 1] of Q^T A P, Q and P orthogonal."""
    size = len(matrix)
    diagonal, above = np.zeros(size), np.zeros(size)
    for start in range(0, size, _PANEL):
        panel = _Panel(matrix[start:, start:], min(_PANEL, size - start))
        columns_a_step = max(1, _ENTRIES_A_STEP // (2 * panel.trailing.numel()))
        for column in range(panel.width):
            diagonal[start + column], above[start + column] = panel.reduce(column)
            if column % columns_a_step == 0:
                yield
        panel.update()
        yield
    return diagonal, above[:-1]


class _Panel:
    """Some columns and rows at the corner of what is left of the matrix.

    After some reflections the matrix is A - V Y^T - X U^T, with the reflections of columns in V and
    those of rows in U. Only the next column and row are computed; the rest follows in `update`.
    """

    def __init__(self, trailing: Tensor, width: int) -> None:
        self.trailing = trailing  # [n, n]
        self.width = width
        self._v, self._x, self._y, self._u = (
            trailing.new_zeros(len(trailing), width) for _ in range(4)
        )

    def reduce(self, at: int) -> tuple[float, float]:
        """The next entry of the main diagonal, and the one to its right."""
        a, v, x, y, u = self.trailing, self._v, self._x, self._y, self._u
        below = at + 1
        column = a[at:, at] - v[at:, :at] @ y[at, :at] - x[at:, :at] @ u[at, :at]
        entry, weight = _reflection(column)
        v[at:, at] = column
        if below == len(a):
            return entry, 0.0
        image = column @ a[at:, below:]
        image -= y[below:, :at] @ (v[at:, :at].T @ column)
        image -= u[below:, :at] @ (x[at:, :at].T @ column)
        y[below:, at] = weight * image
        row = a[at, below:] - y[below:, :below] @ v[at, :below] - u[below:, :at] @ x[at, :at]
        right, weight = _reflection(row)
        u[below:, at] = row
        image = a[below:, below:] @ row
        image -= v[below:, :below] @ (y[below:, :below].T @ row)
        image -= x[below:, :at] @ (u[below:, :at].T @ row)
        x[below:, at] = weight * image
        return entry, right

    def update(self) -> None:
        rest = slice(self.width, None)
        corner = self.trailing[rest, rest]
        corner.addmm_(self._v[rest], self._y[rest].T, alpha=-1)
        corner.addmm_(self._x[rest], self._u[rest].T, alpha=-1)


def _reflection(vector: Tensor) -> tuple[float, float]:
    """Turn a vector into w, in place, such that 1 - t w w^T maps it onto its first axis. The result
    is its coordinate there, and t."""
    first = float(vector[0])
    rest = float(vector[1:].norm())
    vector[0] = 1.0
    if rest == 0.0:
        return first, 0.0
    onto = -math.copysign(math.hypot(first, rest), first)
    vector[1:] /= first - onto
    return onto, (onto - first) / onto


def bidiagonal_values(diagonal: Floats, above: Floats) -> Steps[Floats]:
    """The singular values of a matrix with these two diagonals: descending."""
    size = len(diagonal)
    beside = np.empty(2 * size - 1)  # of the main diagonal of the tridiagonal matrix
    beside[0::2], beside[1::2] = diagonal, above
    largest = np.abs(beside).max()
    if largest == 0:
        return np.zeros(size)
    squares = np.square(beside / largest).clip(min=_TINY).tolist()
    low, high = np.zeros(size), np.full(size, 2.001)  # no row of the scaled matrix sums to more
    ranks = np.arange(size)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        is_above = (yield from _num_above(middle, squares)) > ranks
        low, high = np.where(is_above, middle, low), np.where(is_above, high, middle)
    values: Floats = (low + high) / 2 * largest
    return values


def _num_above(places: Floats, squares: list[float]) -> Steps[Floats]:
    """How many eigenvalues of the tridiagonal matrix lie above each of these positive numbers."""
    pivots, count = -places, np.ones(len(places))
    entries_a_step = max(1, _COUNTS_A_STEP // len(places))
    for start in range(0, len(squares), entries_a_step):
        _count_negative(pivots, count, places, squares[start : start + entries_a_step])
        yield
    above: Floats = len(squares) + 1 - count
    return above


def _count_negative(
    pivots: Floats, count: Floats, places: Floats, squares: Sequence[float]
) -> None:
    """Continue the Sturm sequences, in place. A pivot of 0 makes the next one infinite, and that
    the one after it what it would be without both."""
    is_negative = np.empty(len(pivots), dtype=bool)
    with np.errstate(divide="ignore"):
        for square in squares:
            np.divide(square, pivots, out=pivots)
            np.add(pivots, places, out=pivots)
            np.negative(pivots, out=pivots)
            np.less(pivots, 0, out=is_negative)
            np.add(count, is_negative, out=count)
