"""The instruments in torch operations and float64: a few rows and all their keys at a time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
from torch import Tensor

from kernels.attention.packed_sequences import PackedSequences
from kernels.instruments.question import Moments, Question, RowStatistics

TILE_BYTES = 4 * 2**20
"""Size of one tile of rows by all keys, which stays in cache."""


def row_statistics(question: Question) -> RowStatistics:
    q = question.q
    answers = q.new_empty(6, len(question.rows), q.shape[1], dtype=torch.float64)
    found = RowStatistics(answers[0], answers[1], answers[2:])
    for sequence, keys, at, rows in _tiles(question):
        for head in range(q.shape[1]):
            logs = _log_weights(question, sequence, keys, rows, head)  # [rows, N]
            weights = logs.exp()
            # A weight of 0 adds nothing, and its log is minus infinity.
            found.entropy[at, head] = torch.special.entr(weights).sum(-1)
            found.sum_of_squares[at, head] = torch.linalg.vecdot(weights, weights)
            found.log_moments[:, at, head] = _central_moments(logs)
    return found


def _tiles(question: Question) -> Iterator[tuple[int, slice, slice, Tensor]]:
    """Tiles as sequence, its keys, where the answers go, and the rows."""
    bounds = question.packed.host_bounds()
    cuts = torch.searchsorted(question.rows, torch.tensor(bounds)).tolist()
    spans = zip(itertools.pairwise(bounds), itertools.pairwise(cuts), strict=True)
    for sequence, ((start, end), (first, last)) in enumerate(spans):
        size = max(1, TILE_BYTES // (8 * max(end - start, 1)))
        for at in range(first, last, size):
            tile = slice(at, min(at + size, last))
            yield sequence, slice(start, end), tile, question.rows[tile].to(question.q.device)


def _log_weights(question: Question, sequence: int, keys: slice, rows: Tensor, head: int) -> Tensor:
    scores = _scores(question, keys, rows, head) if question.has_scores else None
    if not question.has_channels:
        assert scores is not None, "softmax has scores"
        whole: Tensor = scores.log_softmax(-1)
        return whole
    lln = _log_lln(question, sequence, keys, rows, head)
    if scores is None:
        return lln
    assert question.mix is not None, "two branches have a mix"
    share = question.mix[rows, head, None].double()
    position, key = rows - keys.start, torch.arange(keys.stop - keys.start, device=rows.device)
    same_block = position[:, None] // question.block_size == key // question.block_size
    is_sink = (key < question.sinks.first) | (key >= len(key) - question.sinks.last)
    diag = scores.masked_fill_(~(same_block | is_sink), -torch.inf).log_softmax(-1)
    return torch.logaddexp(share.log() + lln, (1 - share).log() + diag)


def _scores(question: Question, keys: slice, rows: Tensor, head: int) -> Tensor:
    q, k = question.q[rows, head].double(), question.k[keys, head].double()
    scores: Tensor = q @ k.t() * q.shape[-1] ** -0.5
    return scores


def _log_lln(question: Question, sequence: int, keys: slice, rows: Tensor, head: int) -> Tensor:
    """log sum_c pi_ic kappa_cj, every key's kappa relative to its greatest channel."""
    scaled_q, scaled_k, log_mass = question.scaled_q, question.scaled_k, question.log_mass
    assert scaled_q is not None, "LLN has queries"
    assert scaled_k is not None, "LLN has keys"
    assert log_mass is not None, "LLN has a state"
    mass = log_mass[sequence, head].double()
    pi = (scaled_q[rows, head].double() + mass).softmax(-1)
    log_kappa = scaled_k[keys, head].double() - mass
    peak = log_kappa.amax(-1, keepdim=True)
    weights = pi @ (log_kappa - peak).exp().t()
    log_weights: Tensor = weights.clamp_(min=torch.finfo(torch.float64).tiny).log_() + peak.t()
    return log_weights


def _central_moments(logs: Tensor) -> Tensor:
    mean = logs.mean(-1, keepdim=True)
    around = logs - mean
    square = around.square()
    return torch.stack(
        [mean.squeeze(-1), square.mean(-1), (square * around).mean(-1), square.square().mean(-1)]
    )


def moments(x: Tensor, packed: PackedSequences) -> Moments:
    found = [_of_one(x[start:end]) for start, end in itertools.pairwise(packed.host_bounds())]
    if not found:
        _, num_heads, head_dim = x.shape
        empty = x.new_empty(0, num_heads, head_dim, dtype=torch.float64)
        return Moments(empty, empty, empty.new_empty(0, num_heads, head_dim, head_dim))
    return Moments(*(torch.stack(parts) for parts in zip(*found, strict=True)))


def _of_one(rows: Tensor) -> Moments:
    wide = rows.double().transpose(0, 1)  # [H, N, D]
    mean = wide.mean(1)
    variance = (wide - mean.unsqueeze(1)).square().mean(1)
    return Moments(mean, variance, wide.transpose(1, 2) @ wide)
