"""|lambda_2| of long texts by block Arnoldi on the centred operator C P, C = I - 1 1^T / N.

C P has the spectrum of P with lambda_1 = 1 replaced by 0, so lambda_2 is its largest eigenvalue.
Each pass is one call of the attention operator for all heads, in linear memory; a call takes as
many vectors as a head is wide at about the price of one. The eigenvalues of the projection onto the
Krylov space (Ritz values) converge to those of C P.

The stated error is first-order and cautious: the residual of the Ritz pair, plus what rounding of
the scores may do to P, times the eigenvalue's condition number within the Krylov space. Heads that
shift (each token attends to its neighbour) have their eigenvalues on a circle, which no Krylov
space resolves quickly: they come back with a large error rather than a wrong claim. What no error
can state is an eigenvalue that the first vectors hardly contain; they are random for that reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from engine.diagnostics.base import Effort, HeadView
from engine.diagnostics.lapack import condition_numbers, eigenpairs
from engine.diagnostics.rows import channel_exponents
from kernels import attention

BASIS_BYTES = 512 * 2**20
"""The Krylov bases held at once; heads are taken in groups, and passes end, to stay below it."""

_MIN_WIDTH, _MAX_WIDTH = 4, 32
_TOKENS_A_VECTOR = {"softmax": 128}
_TOKENS_A_VECTOR_IF_LINEAR = 2_048
"""Vectors a pass. One a pass gives the highest degree for a basis, and so the smallest projected
eigenproblem; many save passes, which counts once a pass over the text costs more than that."""

_CHECK_EVERY = 64
"""Basis vectors between two looks at the eigenvalues."""

_ROUNDING_SHARE = 0.1
"""float32 is used where its rounding may cost at most this share of the tolerance."""


class SecondModuli(NamedTuple):
    moduli: Tensor  # [H] float64
    errors: Tensor  # [H] float64


class Ritz(NamedTuple):
    """The largest eigenvalue of the projection, head by head."""

    moduli: Tensor  # [H] float64
    residuals: Tensor  # [H] float64
    conditions: Tensor  # [H] float64, inf where it is defective


def second_moduli(view: HeadView, effort: Effort) -> SecondModuli:
    """|lambda_2| of every head, with its error."""
    rounding = _rounding_of_float32(view)
    is_fine = bool((rounding <= _ROUNDING_SHARE * effort.tolerance).all())
    dtype = torch.float32 if is_fine else torch.float64
    if not is_fine:
        rounding = torch.zeros_like(rounding)
    moduli, errors = torch.zeros_like(rounding), torch.ones_like(rounding)
    for heads in _head_groups(view, effort, dtype):
        iteration = BlockArnoldi(view.only(heads), effort, dtype)
        unsettled = torch.tensor(heads)
        while True:
            iteration.run_to_check()
            ritz = iteration.ritz()
            moduli[unsettled] = ritz.moduli
            errors[unsettled] = _stated_error(ritz, rounding[unsettled])
            inexact = (errors[unsettled] > effort.tolerance).nonzero().flatten()
            if len(inexact) == 0 or iteration.passes == iteration.max_passes:
                break
            iteration.keep(inexact)
            unsettled = unsettled[inexact]
    return SecondModuli(moduli, errors)


class BlockArnoldi:
    """The Krylov spaces of some heads, grown together: C P V_m = V_(m + 1) projection."""

    def __init__(self, view: HeadView, effort: Effort, dtype: torch.dtype) -> None:
        self.view = replace(view, q=view.q.to(dtype), k=view.k.to(dtype))
        self.width = _width(view)
        self.max_passes = _max_passes(view, effort, dtype)
        self.passes = 0
        heads, columns = view.num_heads, self.max_passes * self.width
        self.basis = self.view.q.new_zeros(heads, view.num_tokens, columns + self.width)
        self.projection = self.view.q.new_zeros(heads, columns + self.width, columns)
        self.basis[..., : self.width] = self._first_vectors(effort.seed)

    def run_to_check(self) -> None:
        """Grow until the next pass at which looking at the eigenvalues is worth its cost."""
        self._extend()
        while self.passes < self.max_passes and self.passes * self.width % _CHECK_EVERY:
            self._extend()

    def ritz(self) -> Ritz:
        size = self.passes * self.width
        projection = self.projection[:, : size + self.width, :size].double().cpu()
        values, vectors = eigenpairs(projection[:, :size])
        largest = values.abs().argmax(-1)
        heads = torch.arange(len(largest))
        tails = vectors[heads, size - self.width :, largest]  # [H, width]
        beyond = projection[:, size:, size - self.width :].to(tails)
        residuals = torch.einsum("hij,hj->hi", beyond, tails).norm(dim=-1)
        return Ritz(values.abs()[heads, largest], residuals, condition_numbers(vectors, largest))

    def keep(self, heads: Tensor) -> None:
        """Go on with these heads alone."""
        self.view = self.view.only(heads.tolist())
        index = heads.to(self.basis.device)
        self.basis, self.projection = self.basis[index], self.projection[index]

    def _extend(self) -> None:
        """One attention call, made orthonormal to all before it; twice, for rounding's sake."""
        size = self.passes * self.width
        known = self.basis[..., : size + self.width]
        image = centred_attention(self.view, known[..., size:])
        along = known.mT @ image
        first, scale = torch.linalg.qr(image - known @ along)
        leftover = known.mT @ first
        second, correction = torch.linalg.qr(first - known @ leftover)
        columns = slice(size, size + self.width)
        rows = slice(size + self.width, size + 2 * self.width)
        self.basis[..., rows] = second
        self.projection[:, : size + self.width, columns] = along + leftover @ scale
        self.projection[:, rows, columns] = correction @ scale
        self.passes += 1

    def _first_vectors(self, seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        shape = (self.view.num_tokens, self.width)
        random = torch.randn(shape, generator=generator, dtype=torch.float64)
        start: Tensor = torch.linalg.qr(random).Q
        return start.to(self.basis)


def centred_attention(view: HeadView, vectors: Tensor) -> Tensor:
    """C P applied to the columns of [H, N, width]."""
    unused = view.head_size - vectors.shape[-1]
    v = pad(vectors.transpose(0, 1), (0, unused))  # [N, H, D]
    attended = _attend(view, v).transpose(0, 1)[..., : vectors.shape[-1]]
    return attended - attended.mean(1, keepdim=True)


def _attend(view: HeadView, v: Tensor) -> Tensor:
    match view.attention:
        case "softmax":
            return attention.softmax_attention(view.q, view.k, v)
        case "block_diagonal":
            return attention.block_diagonal_attention(
                view.q, view.k, v, block_size=view.block_size, num_sinks=view.num_sinks
            )
        case "lln":
            return attention.lln_attention(
                view.q, view.k, v, **_scales(view), q_map=view.q_map, k_map=view.k_map
            )
        case "lln_diag":
            assert view.mix is not None, "checked by the view"
            return attention.lln_diag_attention(
                *(view.q, view.k, v),
                **_scales(view),
                mix=view.mix,
                block_size=view.block_size,
                num_sinks=view.num_sinks,
                q_map=view.q_map,
                k_map=view.k_map,
            )


def _scales(view: HeadView) -> dict[str, Tensor]:
    assert view.alpha is not None, "checked by the view"
    assert view.beta is not None, "checked by the view"
    return {"alpha": view.alpha, "beta": view.beta}


def _head_groups(view: HeadView, effort: Effort, dtype: torch.dtype) -> Iterator[list[int]]:
    blocks = _max_passes(view, effort, dtype) + 1
    size = max(1, BASIS_BYTES // (blocks * _block_bytes(view, dtype)))
    for start in range(0, view.num_heads, size):
        yield list(range(start, min(start + size, view.num_heads)))


def _width(view: HeadView) -> int:
    per_vector = _TOKENS_A_VECTOR.get(view.attention, _TOKENS_A_VECTOR_IF_LINEAR)
    wanted = 1 << max(view.num_tokens // per_vector, 1).bit_length() - 1
    return min(max(wanted, _MIN_WIDTH), _MAX_WIDTH, view.head_size, view.num_tokens)


def _max_passes(view: HeadView, effort: Effort, dtype: torch.dtype) -> int:
    """As many as the effort allows, the space has dimensions for and one head's basis may hold."""
    width = _width(view)
    columns = min(effort.max_basis, view.num_tokens - width)
    in_memory = BASIS_BYTES // _block_bytes(view, dtype) - 1
    return max(1, min(columns // width, in_memory))


def _block_bytes(view: HeadView, dtype: torch.dtype) -> int:
    return view.num_tokens * _width(view) * dtype.itemsize


def _rounding_of_float32(view: HeadView) -> Tensor:
    """How far scores rounded to float32 may move P, relative to itself: [H].

    A score off by e changes a softmax's weights by up to a factor 1 + 2 e.
    """
    longest_q, longest_k = (x.double().norm(dim=-1).amax(0) for x in (view.q, view.k))
    largest = longest_q * longest_k * view.scale
    if view.has_channels:
        assert view.alpha is not None, "checked by the view"
        assert view.beta is not None, "checked by the view"
        queries = channel_exponents(view.q, view.q_map, view.alpha)
        keys = channel_exponents(view.k, view.k_map, view.beta)
        largest = largest.maximum(queries.abs().amax((1, 2)) + keys.abs().amax((1, 2)))
    rounding: Tensor = 2 * torch.finfo(torch.float32).eps * largest
    return rounding.cpu()


def _stated_error(ritz: Ritz, rounding: Tensor) -> Tensor:
    """At most 1, which says nothing: |lambda_2| lies in [0, 1]."""
    error = (ritz.residuals + rounding) * ritz.conditions
    return error.nan_to_num(nan=1.0).clamp_max(1.0)
