# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-untyped"
# Kernels are compiled by Triton: pointers, blocks and constexprs have no Python types.
"""LLN's share in the output of each row, from its query: no tensor holds the shares of a batch."""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.attention.gpu.forward_state import LOG2_E

PARTS = tl.constexpr(8)
"""Columns of the product with a gate: the fewest that tensor cores take. Three are used."""


@triton.jit
def lln_shares(
    b_q,  # [BM, BD] queries
    m_rows,  # [BM] queries of this tile
    p_mix,  # share of the tile's first row, or one head's bias with GATE, float32
    p_gate,  # one head's gate, float32 [D]; unused without GATE
    p_mix_scale,  # the sequence's factor, float32; unused without MIX_SCALE
    stride_mix_t,
    D: tl.constexpr,
    BD: tl.constexpr,
    BM: tl.constexpr,
    GATE: tl.constexpr,
    MIX_SCALE: tl.constexpr,
):
    """LLN's share of every row, float32 [BM]."""
    if GATE:
        b_logit = times_gate(b_q, p_gate, D, BD) * LOG2_E + tl.load(p_mix) * LOG2_E
        b_share = 1.0 / (1.0 + tl.exp2(-b_logit))
    else:
        b_share = tl.load(p_mix + tl.arange(0, BM) * stride_mix_t, mask=m_rows, other=0.0)
    if MIX_SCALE:
        b_share *= tl.load(p_mix_scale)
    return b_share


@triton.jit
def times_gate(
    b_q,  # [BM, BD] queries
    p_gate,  # one head's gate, float32 [D]
    D: tl.constexpr,
    BD: tl.constexpr,
):
    """gate . q of every row, float32 [BM]."""
    o_d = tl.arange(0, BD)
    b_gate = tl.load(p_gate + o_d, mask=o_d < D, other=0.0)
    if b_q.dtype == tl.float32:
        return tl.sum(b_q * b_gate[None, :], 1)
    # On tensor cores, with nothing lost: the gate in three numbers of the queries' dtype.
    b_high = b_gate.to(b_q.dtype)
    b_gate -= b_high.to(tl.float32)
    b_middle = b_gate.to(b_q.dtype)
    b_low = (b_gate - b_middle.to(tl.float32)).to(b_q.dtype)
    o_part = tl.arange(0, PARTS)[None, :]
    b_parts = tl.where(o_part == 0, b_high[:, None], tl.where(o_part == 1, b_middle[:, None], 0.0))
    b_parts = tl.where(o_part == 2, b_low[:, None], b_parts).to(b_q.dtype)
    return tl.sum(tl.dot(b_q, b_parts), 1)
