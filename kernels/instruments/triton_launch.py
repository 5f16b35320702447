"""Launches the instruments' kernels. Which rows a program reads is settled on the host."""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import torch
import triton  # type: ignore[import-untyped]
from torch import Tensor

from kernels.attention.arguments import PackedSequences
from kernels.attention.triton_gradient_launch import add_pieces
from kernels.attention.triton_operands import device_of, launch, unit_stride
from kernels.attention.triton_slots import num_slots
from kernels.attention.triton_tiles import padded_head_dim, piece_tokens
from kernels.instruments.results import Moments, Question, RowStatistics
from kernels.instruments.triton_moments import moments_kernel
from kernels.instruments.triton_rows import row_statistics_kernel

PRECISION = "tf32x3"
"""Rows are float32 here: an entropy is a small difference of large sums."""


_ROWS_AND_KEYS = {16: (64, 64), 32: (64, 64), 64: (64, 32), 128: (32, 32)}
"""Of a step, by padded head size: what fits the shared memory of every GPU we know."""


class RowTiles(NamedTuple):
    """Rows of one sequence each, so many a tile."""

    sequence: Tensor  # int32 [tiles]
    rows: Tensor  # int32 [tiles, BM] positions in the sequence, -1 for none
    first: Tensor  # int32 [tiles] where the answers of a tile begin


def row_statistics(question: Question) -> RowStatistics:
    q, k = unit_stride(question.q), unit_stride(question.k)
    num_heads, head_dim = q.shape[1:]
    constants = row_constants(head_dim, scores=question.has_scores, channels=question.has_channels)
    tiles = row_tiles(question.rows, question.packed.host_bounds(), constants["BM"])
    num_answers = len(question.rows)
    answers = q.new_empty(6, num_answers, num_heads, dtype=torch.float32)
    channels = question.scaled_q, question.scaled_k, question.log_mass, question.mix
    with device_of(q):
        launch(
            row_statistics_kernel, len(tiles.sequence) * num_heads,
            q, k, *(q if x is None else x.contiguous() for x in channels),
            question.packed.cu_seqlens, tiles.sequence.to(q.device), tiles.rows.to(q.device),
            tiles.first.to(q.device), answers, num_heads, num_answers, question.block_size,
            *question.sinks, 1.0 / math.sqrt(head_dim), *q.stride()[:2], *k.stride()[:2],
            **constants,
        )  # fmt: skip
    lengths = torch.tensor(question.packed.host_bounds()).diff().double()
    owners = torch.arange(len(lengths)).repeat_interleave(lengths.long())[question.rows]
    log_lengths = lengths[owners].log().to(q.device, torch.float32).unsqueeze(-1)
    return RowStatistics(answers[0], answers[1], _central(answers[2:], log_lengths))


def _central(raw: Tensor, log_lengths: Tensor) -> Tensor:
    """From moments of log P + log N about 0 to the mean of log P and those about it."""
    mean, second, third, fourth = raw.double()
    variance = second - mean**2
    skew = third - 3 * mean * second + 2 * mean**3
    tail = fourth - 4 * mean * third + 6 * mean**2 * second - 3 * mean**4
    return torch.stack([mean - log_lengths, variance, skew, tail]).float()


def row_tiles(rows: Tensor, bounds: tuple[int, ...], size: int) -> RowTiles:
    """Rows cut into tiles that end with their sequence."""
    sequences, positions, firsts = [], [], []
    cuts = torch.searchsorted(rows, torch.tensor(bounds)).tolist()
    for sequence, (first, last) in enumerate(itertools.pairwise(cuts)):
        for at in range(first, last, size):
            some = rows[at : min(at + size, last)] - bounds[sequence]
            padding = some.new_full((size - len(some),), -1)
            sequences.append(sequence)
            positions.append(torch.cat([some, padding]))
            firsts.append(at)
    together = torch.stack(positions) if positions else torch.empty(0, size)
    return RowTiles(
        torch.tensor(sequences, dtype=torch.int32),
        together.to(torch.int32),
        torch.tensor(firsts, dtype=torch.int32),
    )


def moments(x: Tensor, packed: PackedSequences) -> Moments:
    x = unit_stride(x)
    num_rows, num_heads, head_dim = x.shape
    cu_seqlens = packed.cu_seqlens
    constants = moments_constants(head_dim)
    piece = constants["PIECE"]
    slots = num_slots(num_rows, packed.count, piece, 1)
    kept = slots if num_rows > piece else 0
    shape = num_heads, head_dim + 1, head_dim
    sums = x.new_empty(packed.count, *shape, dtype=torch.float32)
    parts = x.new_empty(kept, *shape, dtype=torch.float32)
    with device_of(x):
        launch(
            moments_kernel, slots * num_heads * triton.cdiv(head_dim, constants["BC"]),
            x, sums, parts, cu_seqlens, packed.count, num_heads, *x.stride()[:2], **constants,
        )  # fmt: skip
        if kept:
            add_pieces(parts, cu_seqlens, sums, piece)
    return _about_zero(sums.double(), x, cu_seqlens)


def _about_zero(sums: Tensor, x: Tensor, cu_seqlens: Tensor) -> Moments:
    """From sums relative to a sequence's first row to the moments themselves."""
    counts = cu_seqlens.diff().double()[:, None, None]  # [B, 1, 1]
    if not x.shape[0]:
        first = sums.new_zeros(sums[:, :, 0].shape)
    else:
        # An empty sequence may begin beyond the last row.
        first = x[cu_seqlens[:-1].long().clamp(max=x.shape[0] - 1)].double()  # [B, H, D]
    total, gram = sums[:, :, 0], sums[:, :, 1:]
    offset = total / counts
    mean = first + offset
    variance = gram.diagonal(dim1=-2, dim2=-1) / counts - offset**2
    outer = first.unsqueeze(-1) * total.unsqueeze(-2)
    whole = gram + outer + outer.transpose(-1, -2)
    whole = whole + counts.unsqueeze(-1) * first.unsqueeze(-1) * first.unsqueeze(-2)
    return Moments(mean, variance, whole)


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


def moments_constants(head_dim: int) -> dict[str, Any]:
    """Everything the moments are compiled for."""
    width = padded_head_dim(head_dim)
    return {
        "PIECE": piece_tokens(head_dim),
        "D": head_dim,
        "BD": width,
        "BC": min(width, 64),
        "BT": 32 if width <= 128 else 16,
        "PRECISION": PRECISION,
        "num_warps": 8 if width >= 64 else 4,
        "num_stages": 2,
    }
