"""The instruments' results, and their checked arguments in one form for CPU and GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias, get_args

import torch
from torch import Tensor

from kernels.attention.arguments import ArgumentError, Sinks
from kernels.attention.packed_sequences import PackedSequences

Kind: TypeAlias = Literal["softmax", "lln", "lln_diag"]
KINDS: tuple[str, ...] = get_args(Kind)


class RowStatistics(NamedTuple):
    """Statistics of rows of an attention matrix P, each over all keys of its sequence."""

    entropy: Tensor  # [R, H] -sum_j P_ij log P_ij, in nats
    sum_of_squares: Tensor  # [R, H] sum_j P_ij^2, the chance that two draws meet
    log_moments: Tensor  # [4, R, H] over j: the mean of log P_ij, its central moments 2 to 4


class Moments(NamedTuple):
    """Moments of the tokens of each sequence and head; an empty sequence has NaN means."""

    mean: Tensor  # [B, H, D]
    variance: Tensor  # [B, H, D] about the mean, divided by the number of tokens
    gram: Tensor  # [B, H, D, D] sum over tokens of x x^T


@dataclass(frozen=True)
class Question:
    """Which attention, and of which rows. Tensors that the kind does not need are None."""

    kind: str
    q: Tensor  # [T, H, D]
    k: Tensor  # [T, H, D]
    scaled_q: Tensor | None  # alpha (q W + b), float [T, H, D]
    scaled_k: Tensor | None  # beta (k W + b)
    log_mass: Tensor | None  # log s, float [B, H, D]
    mix: Tensor | None  # LLN's share, float [T, H]
    packed: PackedSequences
    block_size: int
    sinks: Sinks
    rows: Tensor  # int64 [R] packed rows, on the host, ascending

    @property
    def has_scores(self) -> bool:
        return self.kind != "lln"

    @property
    def has_channels(self) -> bool:
        return self.kind != "softmax"


def check_kind(kind: str) -> str:
    if kind not in KINDS:
        raise ArgumentError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    return kind


def check_chosen_rows(rows: Tensor | None, num_rows: int) -> Tensor:
    """Packed rows, ascending; all of them by default."""
    if rows is None:
        return torch.arange(num_rows)
    if rows.dim() != 1 or rows.dtype not in (torch.int32, torch.int64):
        raise ArgumentError(f"rows must be integers (R,), got {rows.dtype} {tuple(rows.shape)}")
    chosen = rows.cpu().long()
    if chosen.numel() and not 0 <= int(chosen.min()) <= int(chosen.max()) < num_rows:
        raise ArgumentError(
            f"rows must be 0 to {num_rows - 1}, got {int(chosen.min())} to {int(chosen.max())}"
        )
    if bool((chosen.diff() <= 0).any()):
        raise ArgumentError("rows must ascend without repeating")
    return chosen
