"""The variants of LLN's branch that compete, and the numbers that their training begins with.

All begin near the calibrated model. The layers that are not trained have LLN+Diag as calibrated, or
its blocks alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeAlias

import torch
from torch import Generator, Tensor

from engine.checkpoint.calibration import Calibration
from engine.experiments.selectivity.attention import (
    LLNBranch,
    PartOfDocument,
    SelectiveAttention,
    SummaryBranch,
)

Below: TypeAlias = Literal["lln_diag", "block_diagonal"]
"""The attention of the layers that are not trained."""

BY_DISTANCE: tuple[PartOfDocument, ...] = ("own_block", "neighbours", "farther")
_SMALL_SHARE = 0.02
"""What a branch begins with that comes beside LLN."""
_MIN_SHARE = 1e-3  # keeps logits finite


@dataclass(frozen=True, kw_only=True)
class Variant:
    below: Below = "lln_diag"
    parts: tuple[PartOfDocument, ...] = ("everything",)  # one LLN state for each; none without LLN
    feature_maps: int = 1  # of each head, each with D channels of state
    has_gate: bool = True  # by which each token chooses its shares; else one share for each head
    summary: bool = False
    trained: bool = True


VARIANTS: Mapping[str, Variant] = MappingProxyType(
    {
        "block_diagonal": Variant(below="block_diagonal", parts=()),
        "lln_diag": Variant(),
        "lln_by_distance": Variant(parts=BY_DISTANCE),
        "lln_and_summaries": Variant(summary=True),
        "lln_in_upper_layers": Variant(below="block_diagonal"),
        "lln_share_by_head": Variant(has_gate=False),
        "lln_two_maps": Variant(feature_maps=2),
        "summaries_without_lln": Variant(below="block_diagonal", parts=(), summary=True),
        "untrained_blocks": Variant(below="block_diagonal", parts=(), trained=False),
        "untrained_lln_diag": Variant(trained=False),
    }
)

Tensors: TypeAlias = dict[str, Tensor]
MAPS = ("query_map", "key_map")


def first_tensors(
    variant: Variant, calibration: Calibration, layer: int, mean_shares: Tensor | None = None
) -> Tensors:
    """The numbers of one layer, by the names of the branches' fields.

    `mean_shares` [H] are the calibrated LLN's over tokens; a variant without a gate begins at them.
    """
    found: Tensors = {}
    mix, nothing = calibration.mix[layer], torch.zeros_like(calibration.key_shift[layer])
    gate = nothing if calibration.gate is None else calibration.gate[layer]
    bias = torch.logit(mix.clamp(_MIN_SHARE, 1 - _MIN_SHARE))
    if variant.parts:
        count = len(variant.parts)
        found |= _maps(calibration, layer, variant.feature_maps)
        found["alpha"], found["beta"] = calibration.alpha[layer], calibration.beta[layer]
        if variant.has_gate:
            found["gate"] = gate.repeat(count, 1, 1)
        elif mean_shares is not None:
            bias = torch.logit(mean_shares.clamp(_MIN_SHARE, 1 - _MIN_SHARE))
        found["bias"] = bias.repeat(count, 1)
    if variant.summary:
        beside = bool(variant.parts)
        little = torch.full_like(bias, math.log(_SMALL_SHARE / (1 - _SMALL_SHARE)))
        found["pick"] = nothing
        found["log_sharpness"] = torch.zeros_like(bias)
        found["summary_gate"] = nothing if beside else gate
        found["summary_bias"] = little if beside else bias
    return {name: tensor.clone() for name, tensor in found.items()}


def _maps(calibration: Calibration, layer: int, count: int) -> Tensors:
    """The calibrated feature map, and others with its features in a basis turned at random.

    A mere copy would never learn anything else: it would have the same gradients.
    """
    shift = calibration.key_shift[layer]
    heads, dim = shift.shape
    identity = torch.eye(dim, dtype=shift.dtype).expand(heads, dim, dim)
    generator = Generator().manual_seed(layer)
    turns = [identity]
    for _ in range(count - 1):
        drawn = torch.randn(heads, dim, dim, generator=generator)
        turns.append(torch.linalg.qr(drawn).Q.to(shift.dtype))
    own = (calibration.query_map, calibration.key_map)
    query_map, key_map = (identity if one is None else one[layer] for one in own)
    return {
        "query_map": torch.cat([query_map @ turn for turn in turns], dim=-1),
        "key_map": torch.cat([key_map @ turn for turn in turns], dim=-1),
        "key_shift": torch.cat([(shift.unsqueeze(1) @ turn).squeeze(1) for turn in turns], dim=-1),
    }


def attention_of(
    variant: Variant, tensors: Mapping[str, Tensor], *, block: int, num_sinks: tuple[int, int]
) -> SelectiveAttention:
    """The attention of one layer, from its tensors."""
    lln = summary = None
    if variant.parts:
        gate = tensors.get("gate")
        if gate is None:
            query_map = tensors["query_map"]
            gate = query_map.new_zeros(len(variant.parts), *query_map.shape[:2])
        lln = LLNBranch(
            alpha=tensors["alpha"],
            beta=tensors["beta"],
            query_map=tensors["query_map"],
            key_map=tensors["key_map"],
            key_shift=tensors["key_shift"],
            gate=gate,
            bias=tensors["bias"],
            parts=variant.parts,
        )
    if variant.summary:
        summary = SummaryBranch(
            pick=tensors["pick"],
            log_sharpness=tensors["log_sharpness"],
            gate=tensors["summary_gate"],
            bias=tensors["summary_bias"],
        )
    return SelectiveAttention(block=block, num_sinks=num_sinks, lln=lln, summary=summary)
