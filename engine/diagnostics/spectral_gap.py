"""The spectral gap 1 - |lambda_2| of a head's attention matrix, as a Markov chain over the tokens.

lambda_1 = 1 always; lambda_2 is the eigenvalue next in modulus, multiplicity counted. A large gap
means that repeating the head mixes all tokens quickly; 0 means that some tokens never mix. A single
token has no second eigenvalue: its gap is 1 by convention.

- LLN: P = pi kappa shares its non-zero spectrum with the D x D matrix kappa pi: exact, linear. The
  moduli of the leading eigenvalues are read beside.
- Block-diagonal of two or more blocks without sinks: 1 is an eigenvalue of every block, so gap 0.
  The gaps of a few blocks alone are read beside, of all where exactness was asked for.
- Short texts: the dense eigenvalues, the leading moduli beside.
- Otherwise iteration (second_eigenvalue.py), linear but for softmax, with a stated error.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.diagnostics.base import Instrument, Quantity, Reading
from engine.diagnostics.heads import Heads
from engine.diagnostics.lapack import eigenvalues
from engine.diagnostics.rows import HeadRows
from engine.diagnostics.second_eigenvalue import second_moduli
from engine.diagnostics.statistics import floats
from engine.diagnostics.work import Work

NUM_EIGENVALUES = 8
NUM_BLOCKS = 4


def measure_spectral_gap(heads: Heads) -> Work[Reading]:
    """1 - |lambda_2| of every head."""
    if heads.num_tokens == 1:
        alone = torch.ones(heads.num_heads, 1, dtype=torch.float64)
        return _exactly(alone, "one token: 1 by convention", "1")
    if heads.is_isolated:
        return (yield from _of_blocks(heads))
    if heads.view.attention == "lln":
        factors = yield from heads.factors()
        return _exactly(
            _moduli(factors.chain), "exact: eigenvalues of the D x D channel chain", "N D^2 + D^3"
        )
    if heads.num_tokens <= heads.effort.max_dense_tokens:
        matrices = yield from _dense(heads)
        return _exactly(_moduli(matrices), "exact: eigenvalues of the N x N matrix", "N^3")
    found = yield from second_moduli(heads)
    return Reading(
        values=floats((1 - found.moduli).clamp(0.0, 1.0)),
        error=floats(found.errors),
        method="block Arnoldi; error: residual x condition number",
        unit=SPECTRAL_GAP.unit,
        cost="passes N^2" if heads.blocks is None else "N b (b + passes)",
    )


def _of_blocks(heads: Heads) -> Work[Reading]:
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


def _dense(heads: Heads) -> Work[Tensor]:
    factors = (yield from heads.factors()) if heads.view.has_channels else None
    rows = torch.arange(heads.num_tokens, device=heads.view.q.device)
    return HeadRows(heads.view, factors, heads.blocks).full(rows)


def _moduli(matrices: Tensor) -> Tensor:
    """Of the leading eigenvalues of stochastic matrices, with the zeros they may lack: [H, 8]."""
    moduli = eigenvalues(matrices).abs()
    padded = torch.nn.functional.pad(moduli, (0, NUM_EIGENVALUES))
    return padded.topk(NUM_EIGENVALUES).values


def _exactly(moduli: Tensor, method: str, cost: str) -> Reading:
    second = moduli[:, 1] if moduli.shape[1] > 1 else torch.zeros(len(moduli), dtype=torch.float64)
    return Reading(
        values=floats((1 - second).clamp(0.0, 1.0)),  # rounding may take |lambda_2| beyond 1
        error=None,
        method=method,
        unit=SPECTRAL_GAP.unit,
        cost=cost,
        beside={"eigenvalue_moduli": Quantity(values=floats(moduli), unit=SPECTRAL_GAP.unit)},
    )


SPECTRAL_GAP = Instrument(
    name="spectral_gap",
    unit="dimensionless",
    description="1 - |second eigenvalue| of the attention matrix; 1 mixes at once, 0 never. "
    "Beside, where known exactly: the moduli of the leading eigenvalues, the gaps of blocks alone.",
    measure=measure_spectral_gap,
    max_softmax_tokens=2_048,
)
