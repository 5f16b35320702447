# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-untyped"
# Kernels are compiled by Triton: pointers, blocks and constexprs have no Python types.
"""Entropy, sum of squares and moments of log P of attention rows.

A tile of rows meets its keys a few at a time. Softmax weights need their row's mass first, so those
keys are met twice; LLN's are known from the state at once. Logarithms are taken relative to even
attention, log P + log N, which keeps their fourth powers small.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.attention.gpu.launch import launch, row_arguments, sink_arguments, unit_stride
from kernels.attention.gpu.tiles import padded_head_dim
from kernels.instruments.gpu.precision import PRECISION
from kernels.instruments.gpu.row_tiles import row_tiles
from kernels.instruments.question import Question, RowStatistics

# Weights are at least float32's least normal number. Triton takes a smaller literal for a float64,
# and everything computed with it would become one.
LEAST = tl.constexpr(1.2e-38)

_ROWS_AND_KEYS = {16: (64, 64), 32: (64, 64), 64: (64, 32), 128: (32, 32)}
"""Rows and keys of a step, by padded head size: what fits the shared memory of every GPU we
know."""


@triton.jit
def load_features(p_rows, m_rows, D: tl.constexpr, BD: tl.constexpr):
    """Whole rows in float32: [rows, BD]."""
    o_d = tl.arange(0, BD)
    m_entry = m_rows[:, None] & (o_d < D)[None, :]
    return tl.load(p_rows + o_d[None, :], mask=m_entry, other=0.0).to(tl.float32)


@triton.jit
def at_least(b_weight, LEAST: tl.constexpr):
    """The greater of both. NaN stays NaN; a GPU's maximum would drop it."""
    return tl.maximum(b_weight, LEAST, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def visible_keys(o_m, o_n, length, block_size, first_sinks, last_sinks, DIAG: tl.constexpr):
    """Which keys count in a row's softmax: all that exist, or Diag's."""
    m_visible = (o_n < length)[None, :] & (o_m >= 0)[:, None]
    if DIAG:
        m_block = (o_m // block_size)[:, None] == (o_n // block_size)[None, :]
        m_sink = (o_n < first_sinks) | (o_n >= length - last_sinks)
        m_visible = m_visible & (m_block | m_sink[None, :])
    return m_visible


@triton.jit
def log_sum_of_scores(
    b_q,  # [BM, BD] queries
    p_k,  # the first key of the sequence and head
    o_m,  # [BM] positions of the queries
    length,
    block_size,
    first_sinks,
    last_sinks,
    scale,
    stride_kt,
    D: tl.constexpr,
    BD: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    DIAG: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """log sum exp of each row's visible scores, under a running maximum: [BM]."""
    b_peak = tl.full([BM], float("-inf"), tl.float32)
    b_mass = tl.zeros([BM], tl.float32)
    for i_n in range(0, length, BN):
        o_n = i_n + tl.arange(0, BN)
        b_k = load_features(p_k + o_n[:, None].to(tl.int64) * stride_kt, o_n < length, D, BD)
        b_score = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION) * scale
        m_visible = visible_keys(o_m, o_n, length, block_size, first_sinks, last_sinks, DIAG)
        b_score = tl.where(m_visible, b_score, float("-inf"))
        b_new_peak = tl.maximum(b_peak, tl.max(b_score, 1))
        # No key of a row may have been seen yet; then there is nothing to shrink.
        b_base = tl.where(b_new_peak == float("-inf"), 0.0, b_new_peak)
        b_mass = b_mass * tl.exp(b_peak - b_base) + tl.sum(tl.exp(b_score - b_base[:, None]), 1)
        b_peak = b_new_peak
    return b_peak + tl.log(b_mass)


@triton.jit(
    do_not_specialize=[
        "p_tile_rows", "p_tile_sequence", "p_cu_seqlens", "num_heads", "num_answers", "block_size",
        "first_sinks", "last_sinks",
    ]
)  # fmt: skip
def row_statistics_kernel(
    p_q,  # queries [T, H, D]; unused without SCORES
    p_k,  # keys [T, H, D]; unused without SCORES
    p_scaled_q,  # alpha q, float32 [T, H, D], contiguous; unused without CHANNELS
    p_scaled_k,  # beta k, the same
    p_log_mass,  # log s, float32 [B, H, D]; unused without CHANNELS
    p_mix,  # LLN's share, float32 [T, H], contiguous; unused unless SCORES and CHANNELS
    p_cu_seqlens,  # first packed row of every sequence, then T, int32 [B + 1]
    p_tile_sequence,  # the sequence of every tile, int32 [tiles]
    p_tile_rows,  # the positions in it that are asked for, -1 for none, int32 [tiles, BM]
    p_tile_first,  # where the tile's answers go, int32 [tiles]
    p_answers,  # out: entropy, sum of squares, four sums of powers, float32 [6, R, H]
    num_heads,
    num_answers,
    block_size,
    first_sinks,
    last_sinks,
    scale,
    stride_qt,
    stride_qh,
    stride_kt,
    stride_kh,
    D: tl.constexpr,
    BD: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    SCORES: tl.constexpr,
    CHANNELS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    DIAG: tl.constexpr = SCORES and CHANNELS
    i_program = tl.program_id(0).to(tl.int64)
    i_h = i_program % num_heads
    i_tile = i_program // num_heads
    i_b = tl.load(p_tile_sequence + i_tile).to(tl.int64)
    i_begin = tl.load(p_cu_seqlens + i_b).to(tl.int64)
    length = (tl.load(p_cu_seqlens + i_b + 1).to(tl.int64) - i_begin).to(tl.int32)
    o_row = tl.arange(0, BM)
    o_m = tl.load(p_tile_rows + i_tile * BM + o_row)
    m_m = o_m >= 0
    # Rows that are none see what the first one does, so that no row is without keys.
    o_m = tl.where(m_m, o_m, 0)
    i_rows = i_begin + o_m
    o_d = tl.arange(0, BD)

    b_log_sum = tl.zeros([BM], tl.float32)
    if SCORES:
        p_q_rows = p_q + i_h * stride_qh + i_rows[:, None] * stride_qt
        b_q = load_features(p_q_rows, m_m, D, BD)
        p_k += i_h * stride_kh + i_begin * stride_kt
        b_log_sum = log_sum_of_scores(
            b_q, p_k, o_m, length, block_size, first_sinks, last_sinks, scale, stride_kt,
            D, BD, BM, BN, DIAG, PRECISION,
        )  # fmt: skip
    if CHANNELS:
        o_state = (i_b * num_heads + i_h) * D
        b_mass_of = tl.load(p_log_mass + o_state + o_d, mask=o_d < D, other=float("-inf"))
        p_rows = p_scaled_q + (i_rows[:, None] * num_heads + i_h) * D
        b_z = load_features(p_rows, m_m, D, BD) + b_mass_of[None, :]
        b_pi = tl.exp(b_z - tl.max(b_z, 1)[:, None])
        b_pi = b_pi / tl.sum(b_pi, 1)[:, None]
    if DIAG:
        b_mix = tl.load(p_mix + i_rows * num_heads + i_h, mask=m_m, other=0.0)

    log_length = tl.log(length.to(tl.float32))
    b_entropy = tl.zeros([BM], tl.float32)
    b_squares = tl.zeros([BM], tl.float32)
    b_first = tl.zeros([BM], tl.float32)
    b_second = tl.zeros([BM], tl.float32)
    b_third = tl.zeros([BM], tl.float32)
    b_fourth = tl.zeros([BM], tl.float32)
    for i_n in range(0, length, BN):
        o_n = i_n + tl.arange(0, BN)
        m_n = o_n < length
        if SCORES:
            b_k = load_features(p_k + o_n[:, None].to(tl.int64) * stride_kt, m_n, D, BD)
            b_log = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION) * scale
            b_log -= b_log_sum[:, None]
        if CHANNELS:
            p_key_rows = p_scaled_k + ((i_begin + o_n[:, None]) * num_heads + i_h) * D
            b_kappa = load_features(p_key_rows, m_n, D, BD) - b_mass_of[None, :]
            b_kappa = tl.where((o_d < D)[None, :], b_kappa, float("-inf"))
            b_top = tl.max(b_kappa, 1)
            b_lln = tl.dot(
                b_pi, tl.trans(tl.exp(b_kappa - b_top[:, None])), input_precision=PRECISION
            )
            if DIAG:
                m_visible = visible_keys(
                    o_m, o_n, length, block_size, first_sinks, last_sinks, DIAG
                )
                b_diag = tl.where(m_visible, tl.exp(b_log), 0.0) * (1.0 - b_mix)[:, None]
                b_log = tl.log(
                    at_least(b_mix[:, None] * b_lln * tl.exp(b_top)[None, :] + b_diag, LEAST)
                )
            else:
                b_log = tl.log(at_least(b_lln, LEAST)) + b_top[None, :]
        b_weight = tl.where(m_n[None, :], tl.exp(b_log), 0.0)
        b_log = tl.where(m_n[None, :], b_log + log_length, 0.0)
        b_entropy -= tl.sum(b_weight * (b_log - log_length), 1)
        b_squares += tl.sum(b_weight * b_weight, 1)
        b_square = b_log * b_log
        b_first += tl.sum(b_log, 1)
        b_second += tl.sum(b_square, 1)
        b_third += tl.sum(b_square * b_log, 1)
        b_fourth += tl.sum(b_square * b_square, 1)

    p_row = p_answers + (tl.load(p_tile_first + i_tile).to(tl.int64) + o_row) * num_heads + i_h
    step = num_answers.to(tl.int64) * num_heads
    tl.store(p_row, b_entropy, mask=m_m)
    tl.store(p_row + step, b_squares, mask=m_m)
    tl.store(p_row + 2 * step, b_first / length, mask=m_m)
    tl.store(p_row + 3 * step, b_second / length, mask=m_m)
    tl.store(p_row + 4 * step, b_third / length, mask=m_m)
    tl.store(p_row + 5 * step, b_fourth / length, mask=m_m)


def row_statistics(question: Question) -> RowStatistics:
    q, k = unit_stride(question.q), unit_stride(question.k)
    num_heads, head_dim = q.shape[1:]
    constants = row_constants(head_dim, scores=question.has_scores, channels=question.has_channels)
    tiles = row_tiles(question.rows, question.packed.host_bounds(), constants["BM"])
    num_answers = len(question.rows)
    answers = q.new_empty(6, num_answers, num_heads, dtype=torch.float32)
    launch(
        row_statistics_kernel,
        len(tiles.sequence) * num_heads,
        **row_arguments(q=q, k=k),
        p_scaled_q=_contiguous(question.scaled_q),
        p_scaled_k=_contiguous(question.scaled_k),
        p_log_mass=_contiguous(question.log_mass),
        p_mix=_contiguous(question.mix),
        p_cu_seqlens=question.packed.cu_seqlens,
        p_tile_sequence=tiles.sequence.to(q.device),
        p_tile_rows=tiles.rows.to(q.device),
        p_tile_first=tiles.first.to(q.device),
        p_answers=answers,
        num_heads=num_heads,
        num_answers=num_answers,
        block_size=question.block_size,
        **sink_arguments(question.sinks),
        scale=1.0 / math.sqrt(head_dim),
        **constants,
    )
    lengths = torch.tensor(question.packed.host_bounds()).diff().double()
    owners = torch.arange(len(lengths)).repeat_interleave(lengths.long())[question.rows]
    log_lengths = lengths[owners].log().to(q.device, torch.float32).unsqueeze(-1)
    return RowStatistics(answers[0], answers[1], _central(answers[2:], log_lengths))


def _contiguous(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.contiguous()


def _central(raw: Tensor, log_lengths: Tensor) -> Tensor:
    """From moments of log P + log N about 0 to the mean of log P and those about it."""
    mean, second, third, fourth = raw.double()
    variance = second - mean**2
    skew = third - 3 * mean * second + 2 * mean**3
    tail = fourth - 4 * mean * third + 6 * mean**2 * second - 3 * mean**4
    return torch.stack([mean - log_lengths, variance, skew, tail]).float()


def row_constants(head_dim: int, *, scores: bool, channels: bool) -> dict[str, Any]:
    """Everything the row statistics are compiled for."""
    width = padded_head_dim(head_dim)
    rows, keys = _ROWS_AND_KEYS.get(width, (16, 16))
    return {
        "D": head_dim,
        "BD": width,
        "BM": rows,
        "BN": keys,
        "SCORES": scores,
        "CHANNELS": channels,
        "PRECISION": PRECISION,
        "num_warps": 8,
        "num_stages": 1,
    }
