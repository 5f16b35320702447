"""LLN's state of a sequence: one small matrix per head, whatever the length.

A file of its own because arguments.py checks states and reference.py checks arguments.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class LLNState(NamedTuple):
    """The keys and values of one or more sequences, summed up channel by channel.

    Channel c spreads over the tokens j with weights kappa_cj = exp(beta k_jc) / s_c.
    """

    log_mass: Tensor  # [B, H, D] log s_c = log sum_j exp(beta k_jc); -inf for an empty sequence
    value: Tensor  # [B, H, D, D] kappa V, the mean value of each channel; 0 for an empty sequence


def empty_state(rows: Tensor, num_sequences: int, value_dtype: torch.dtype) -> LLNState:
    """Uninitialised states of this many sequences."""
    _, num_heads, head_dim = rows.shape
    return LLNState(
        rows.new_empty(num_sequences, num_heads, head_dim, dtype=torch.float32),
        rows.new_empty(num_sequences, num_heads, head_dim, head_dim, dtype=value_dtype),
    )


def merge_states(a: LLNState, b: LLNState) -> LLNState:
    """The state of two pieces of a sequence read as one, exact up to rounding."""
    log_mass = torch.logaddexp(a.log_mass, b.log_mass)
    value = _share(a.log_mass, log_mass) * a.value + _share(b.log_mass, log_mass) * b.value
    return LLNState(log_mass, value)


def _share(part: Tensor, whole: Tensor) -> Tensor:
    """exp(part - whole), 0 where both are empty."""
    share = torch.exp(part - whole)
    return share.masked_fill(torch.isneginf(whole), 0.0).unsqueeze(-1)
