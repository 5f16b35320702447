"""Instruments of whole layers: what a layer does to the states that run through it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from engine.diagnostics.base import Reading
from engine.diagnostics.work import Work


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerView:
    """One layer of one document. Filled by whoever runs the encoder."""

    index: int
    before: Tensor  # [T, W] the states it reads
    after: Tensor  # [T, W] the states it gives
    mix_tokens: Callable[[Tensor], Work[Tensor]]
    """sum_h P_h S W_h of states S [T, W]: this layer's attention with its P held, no biases."""


class LayerReader(Protocol):
    """Reads the layers of one text in their order; some remember what they saw."""

    def __call__(self, layer: LayerView) -> Work[Reading]: ...


@dataclass(frozen=True, kw_only=True)
class LayerInstrument:
    name: str
    unit: str
    description: str
    start: Callable[[], LayerReader]
    """A reader for one text."""
    needs_all_layers: bool = False
    """Whether it must see the layers before the ones that were asked for."""
    max_tokens: int | None = None
    """Longest text that is read by this instrument without being asked to."""
