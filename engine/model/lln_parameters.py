"""The numbers that one layer's LLN+Diag attention was calibrated with."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from engine.checkpoint.block_size import LongBlock, block_of
from kernels.attention import Gate
from kernels.attention.arguments import Map


@dataclass(frozen=True, kw_only=True)
class LLNParameters:
    """Numbers fixed by calibration, so a text's vector never depends on the rest of its batch."""

    alpha: Tensor  # [H]
    beta: Tensor  # [H]
    mix: Tensor  # [H]
    key_shift: Tensor  # [H, D] added to every key before LLN's exponential, to centre the keys
    block_size: int
    num_sinks: tuple[int, int]
    long_block: LongBlock | None = None

    # Optional, from training; None costs nothing.
    query_map: Tensor | None = None  # [H, D, D] applied to queries before LLN's exponential
    key_map: Tensor | None = None  # [H, D, D] applied to keys
    gate: Tensor | None = None  # [H, D] a token's share of LLN is sigmoid(gate . q + logit(mix))

    @cached_property
    def q_map(self) -> Map | None:
        if self.query_map is None:
            return None
        with torch.inference_mode(False):  # it may be used under autograd later
            return self.query_map, torch.zeros_like(self.key_shift)

    @property
    def k_map(self) -> Map:
        return self.key_map, self.key_shift

    @cached_property
    def mix_of_token(self) -> Tensor | Gate:
        """LLN's share as attention takes it: by head, or by token with a gate."""
        if self.gate is None:
            return self.mix
        with torch.inference_mode(False):
            return Gate(self.gate, torch.logit(self.mix))

    def block_of(self, length: int) -> int:
        """The block size in a text of this length."""
        return block_of(length, self.block_size, self.long_block)

    def on(self, device: torch.device) -> LLNParameters:
        tensors: dict[str, Any] = {
            field.name: value.to(device)
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), Tensor)
        }
        return replace(self, **tensors)
