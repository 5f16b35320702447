"""The spectral gap 1 - |lambda_2| of a head's attention matrix, as a Markov chain over the tokens.

lambda_1 = 1 always; lambda_2 is the eigenvalue next in modulus, multiplicity counted. A large gap
means that repeating the head mixes all tokens quickly; 0 means that some tokens never mix. A single
token has no second eigenvalue: its gap is 1 by convention.

- LLN: P = pi kappa shares its non-zero spectrum with the D x D matrix kappa pi: exact, linear.
- Block-diagonal of two or more blocks without sinks: 1 is an eigenvalue of every block, so gap 0.
- Short texts: the dense eigenvalues.
- Otherwise block Arnoldi (arnoldi.py), whose passes are calls of the attention operator itself.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.diagnostics.arnoldi import second_moduli
from engine.diagnostics.base import Effort, HeadView, Instrument, Reading
from engine.diagnostics.lapack import eigenvalues
from engine.diagnostics.rows import HeadRows, head_groups, lln_factors


def measure_spectral_gap(view: HeadView, effort: Effort) -> Reading:
    """1 - |lambda_2| of every head."""
    if view.num_tokens == 1:
        return _exactly(torch.ones(view.num_heads), "one token: 1 by convention")
    if _falls_apart(view):
        return _exactly(
            torch.zeros(view.num_heads), f"structural: {view.num_blocks} blocks never mix"
        )
    if view.attention == "lln":
        return _exactly(1 - _lln_moduli(view), "exact: eigenvalues of the D x D channel chain")
    if view.num_tokens <= effort.max_dense_tokens:
        return _exactly(1 - _dense_moduli(view), "exact: eigenvalues of the N x N matrix")
    found = second_moduli(view, effort)
    return _reading(
        1 - found.moduli, found.errors, "block Arnoldi; error: residual x condition number"
    )


def _falls_apart(view: HeadView) -> bool:
    isolated = view.attention == "block_diagonal" and sum(view.num_sinks) == 0
    return isolated and view.num_blocks > 1


def _lln_moduli(view: HeadView) -> Tensor:
    """From T = kappa pi, with the zeros it may lack."""
    chains = []
    for heads in head_groups(view):
        factors = lln_factors(view.only(heads))
        chains.append(torch.bmm(factors.kappa, factors.pi))
    return _second_largest(torch.cat(chains))


def _dense_moduli(view: HeadView) -> Tensor:
    rows = torch.arange(view.num_tokens, device=view.q.device)
    groups = (HeadRows(view.only(heads)) for heads in head_groups(view))
    return torch.cat([_second_largest(group.full(rows)) for group in groups])


def _second_largest(matrices: Tensor) -> Tensor:
    """Modulus of the second eigenvalue of every stochastic matrix: [H]."""
    moduli = eigenvalues(matrices).abs()
    padded = torch.nn.functional.pad(moduli, (0, 1))  # a 1 x 1 chain has a second eigenvalue of 0
    return padded.topk(2).values[:, 1]


def _exactly(gap: Tensor, method: str) -> Reading:
    return _reading(gap, None, method)


def _reading(gap: Tensor, error: Tensor | None, method: str) -> Reading:
    return Reading(
        values=gap.double().clamp(0.0, 1.0).numpy(),  # rounding may take |lambda_2| beyond 1
        error=None if error is None else error.numpy(),
        method=method,
        unit=SPECTRAL_GAP.unit,
    )


SPECTRAL_GAP = Instrument(
    name="spectral_gap",
    unit="dimensionless",
    description="1 - |second eigenvalue| of the attention matrix; 1 mixes at once, 0 never",
    measure=measure_spectral_gap,
)
