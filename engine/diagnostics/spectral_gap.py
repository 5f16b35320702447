"""The spectral gap 1 - |lambda_2| of a head's attention matrix, as a Markov chain over the tokens.

lambda_1 = 1 always; lambda_2 is the eigenvalue next in modulus, counted with multiplicity. A large
gap means that repeating the head mixes all tokens quickly; 0 means that some tokens never mix. A
single token has no second eigenvalue: its gap is 1 by convention. Beside: the phase of lambda_2,
near 0 where mass leaks slowly from group to group, far from 0 where tokens attend in a cycle or to
the token before.

- LLN: P = pi kappa has the non-zero spectrum of the D x D matrix kappa pi: exact, linear. Beside:
  the moduli of the leading eigenvalues.
- Block-diagonal, two or more blocks without sinks: 1 is an eigenvalue of every block, so the gap is
  0. Beside: the gaps of a few single blocks, of all blocks in mode "exact".
- Texts up to 512 tokens, in mode "exact" up to 4,096: the dense eigenvalues. Beside: the leading
  moduli.
- In other modes, those whose matrices are kept: block Arnoldi on the matrix from random vectors,
  which finds the largest eigenvalues wherever they lie.
- Longer texts: softmax likewise without its matrix; kinds with blocks by iteration near 1, which is
  linear.

How the second eigenvalue is iterated stands in `second_eigenvalue.py`.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor

from engine.diagnostics.head_group import HeadGroup
from engine.diagnostics.instrument import Instrument
from engine.diagnostics.linear_algebra import eigenvalues
from engine.diagnostics.parallel import run_aside
from engine.diagnostics.readings import Quantity, Reading, error_floats, floats
from engine.diagnostics.second_eigenvalue import second_eigenvalues
from engine.steps import Steps

NUM_EIGENVALUES = 8
NUM_BLOCKS = 4


def measure_spectral_gap(heads: HeadGroup) -> Steps[Reading]:
    """1 - |lambda_2| of every head."""
    if heads.num_tokens == 1:
        alone = torch.ones(heads.num_heads, 1, dtype=torch.complex128)
        return _exactly(alone, "one token: 1 by convention", "1")
    if heads.is_isolated:
        return (yield from _of_blocks(heads))
    if heads.view.attention == "lln":
        factors = yield from heads.factors()
        return _exactly(
            eigenvalues(factors.chain),
            "exact: eigenvalues of the D x D channel chain",
            "N D^2 + D^3",
        )
    is_dense = heads.has_matrix
    if heads.effort.has_all_eigenvalues(heads.num_tokens):
        spectrum = yield from _dense_spectrum(heads)
        return _exactly(spectrum, "exact: eigenvalues of the N x N matrix", "N^3")
    found = yield from second_eigenvalues(heads)
    looked = heads.blocks is not None and not is_dense
    near_one = " near 1, anywhere if blocks fade slowly" if looked else ""
    return Reading(
        values=floats((1 - found.values.abs()).clamp(0.0, 1.0)),
        error=floats(found.errors),
        method=f"block Arnoldi{near_one}; error: residual x condition number",
        unit=SPECTRAL_GAP.unit,
        cost="passes N^2" if is_dense or heads.blocks is None else "N b (b + passes)",
        beside={"second_phase": _phase(found.values, found.errors)},
    )


def _of_blocks(heads: HeadGroup) -> Steps[Reading]:
    assert heads.blocks is not None, "only blocks are isolated"
    count = heads.blocks.count
    chosen = range(count)
    if heads.effort.mode != "exact" and count > NUM_BLOCKS:
        chosen = range(0, count, -(-count // NUM_BLOCKS))
    gaps = []
    for block in chosen:
        size = min(heads.blocks.width, heads.num_tokens - block * heads.blocks.width)
        own = heads.blocks.weights(slice(block, block + 1))[:, 0, :size, :size]
        moduli = _moduli(own)
        gaps.append(1 - moduli[:, 1] if size > 1 else torch.ones_like(moduli[:, 1]))
        yield
    structural = torch.zeros(heads.num_heads, dtype=torch.float64)
    indices = torch.tensor(chosen).expand(heads.num_heads, -1)
    by_block = floats(torch.stack(gaps, dim=1).clamp(0.0, 1.0))
    return Reading(
        values=floats(structural),
        error=None,
        method=f"structural: {heads.blocks.count} blocks never mix",
        unit=SPECTRAL_GAP.unit,
        cost="N b^2",
        beside={
            "blocks": Quantity(values=floats(indices), unit="block index"),
            "by_block": Quantity(values=by_block, unit=SPECTRAL_GAP.unit),
        },
    )


def _dense_spectrum(heads: HeadGroup) -> Steps[Tensor]:
    """All eigenvalues, a head at a time: [H, N] complex."""
    if heads.num_tokens <= heads.effort.max_dense_tokens:
        return eigenvalues((yield from heads.matrix()).cpu())
    found = []
    for head in range(heads.num_heads):
        matrix = yield from _matrix_of(heads, head)
        # NumPy's LAPACK takes seconds, lets go of the interpreter and does not use torch's threads.
        values = yield from run_aside(partial(np.linalg.eigvals, matrix.cpu().numpy()))
        found.append(torch.from_numpy(values).to(torch.complex128))
    return torch.stack(found)


def _matrix_of(heads: HeadGroup, head: int) -> Steps[Tensor]:
    """One head's attention matrix: [N, N]. A long text's is not kept."""
    if heads.has_matrix:
        return (yield from heads.matrix())[head]
    alone = HeadGroup(heads.view.only([head]), heads.effort, dtype=torch.float64)
    return (yield from alone.matrix())[0]


def _moduli(matrices: Tensor) -> Tensor:
    """The leading moduli of stochastic matrices, padded with zeros: [H, 8]."""
    return _leading(eigenvalues(matrices)).abs()


def _leading(values: Tensor) -> Tensor:
    """The eigenvalues of the largest moduli, padded with zeros: [H, 8]."""
    padded = torch.nn.functional.pad(values, (0, NUM_EIGENVALUES))
    return padded.gather(1, padded.abs().topk(NUM_EIGENVALUES).indices)


def _exactly(spectrum: Tensor, method: str, cost: str) -> Reading:
    """From all eigenvalues that are not 0: [H, n]."""
    leading = _leading(spectrum)
    moduli = leading.abs()
    return Reading(
        values=floats((1 - moduli[:, 1]).clamp(0.0, 1.0)),  # rounding may take it beyond
        error=None,
        method=method,
        unit=SPECTRAL_GAP.unit,
        cost=cost,
        beside={
            "second_phase": _phase(leading[:, 1]),
            "eigenvalue_moduli": Quantity(values=floats(moduli), unit=SPECTRAL_GAP.unit),
        },
    )


def _phase(second: Tensor, errors: Tensor | None = None) -> Quantity:
    """The phase of an eigenvalue or its conjugate: in [0, pi]. Its error is the angle at which a
    disc around the eigenvalue is seen from 0, with the eigenvalue's error for its radius. Where
    that is as large as the gap, another eigenvalue may be the second one, and its phase any."""
    error = None
    if errors is not None:
        moduli = second.abs()
        is_found = (errors < moduli) & (errors < 1 - moduli)
        error = torch.where(is_found, (errors / moduli).clamp_max(1.0).asin(), torch.pi)
    phase = torch.angle(second).abs()
    return Quantity(values=floats(phase), unit="radians", error=error_floats(error))


SPECTRAL_GAP = Instrument(
    name="spectral_gap",
    unit="dimensionless",
    description="1 - |second eigenvalue| of the attention matrix; 1 mixes at once, 0 never. "
    "Beside: that eigenvalue's phase and, where known exactly, the moduli of the leading "
    "eigenvalues, the gaps of blocks alone.",
    measure=measure_spectral_gap,
    max_softmax_tokens=2_048,
)
