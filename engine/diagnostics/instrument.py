"""What an instrument is: of single heads, or of whole layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

from engine.diagnostics.head_group import HeadGroup
from engine.diagnostics.readings import Reading
from engine.steps import Steps


@dataclass(frozen=True, kw_only=True)
class Instrument:
    """Reads the heads of one layer."""

    name: str
    unit: str
    description: str
    measure: Callable[[HeadGroup], Steps[Reading]]
    needs: tuple[Literal["v", "x", "out", "token_kinds"], ...] = ()
    """What a view must have besides queries and keys."""
    compares_heads: bool = False
    """Whether it needs all heads of a layer at once."""
    max_softmax_tokens: int | None = None
    """The longest text of which it reads a softmax layer without being named."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerView:
    """One layer of one document. The code that runs the encoder fills it."""

    index: int
    before: Tensor  # [T, W] the states it reads
    after: Tensor  # [T, W] the states it returns
    mix_tokens: Callable[[Tensor], Steps[Tensor]]
    """sum_h P_h S W_h of states S [T, W]: this layer's attention with P fixed, without biases."""


class LayerReader(Protocol):
    """Reads the layers of one text in their order. A reader may have state."""

    def __call__(self, layer: LayerView) -> Steps[Reading]: ...


@dataclass(frozen=True, kw_only=True)
class LayerInstrument:
    """Reads whole layers: what a layer does to the states that pass through it."""

    name: str
    unit: str
    description: str
    start: Callable[[], LayerReader]
    """Returns a reader for one text."""
    needs_all_layers: bool = False
    """Whether it must see every layer before the ones that were asked for."""
    max_tokens: int | None = None
    """The longest text that it reads without being named."""
