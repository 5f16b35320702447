"""The values of a checkpoint's config.json, checked, and the encoder's sizes among them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.errors import CheckpointError, Quantity
from engine.model.weights import ACTIVATIONS, Activation
from kernels.attention.arguments import MAX_HEAD_DIM, MIN_HEAD_DIM


@dataclass(frozen=True)
class EncoderConfig:
    """The values of a config.json. An error names the file, the key and the value."""

    path: Path
    values: Mapping[str, Any]

    def whole(self, name: str, *, default: int | None = None, least: int = 1) -> int:
        value = self.values.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self.error(name, f"an integer of at least {least}", limit=least)
        return value

    def positive(self, name: str, *, default: float | None = None) -> float:
        value = self._number(name, default)
        if value is None or value <= 0:
            raise self.error(name, "a positive number")
        return value

    def not_negative(self, name: str, *, default: float | None = None) -> float:
        value = self._number(name, default)
        if value is None or value < 0:
            raise self.error(name, "a number of at least 0", limit=0)
        return value

    def _number(self, name: str, default: float | None) -> float | None:
        """None if it is not a finite number. Some tools write 1e-12 as a string."""
        value = self.values.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            return None
        try:
            number = float(value)
        except (ValueError, OverflowError):  # an integer may be too large for a float
            return None
        return number if math.isfinite(number) else None

    def activation(self, name: str) -> Activation:
        value = self.values.get(name, "gelu")
        if not isinstance(value, str) or value not in ACTIVATIONS:
            known = ", ".join(ACTIVATIONS)
            raise self.error(name, f"one of {known}", limit=known)
        return ACTIVATIONS[value]

    def switch(self, name: str) -> bool:
        """False if the key is missing."""
        return bool(self.values.get(name, False))

    def part(self, *names: str) -> EncoderConfig | None:
        """A nested object, if there is one."""
        values: Any = self.values
        for name in names:
            values = values.get(name) if isinstance(values, Mapping) else None
        return replace(self, values=values) if isinstance(values, Mapping) else None

    def error(self, name: str, wanted: str, *, limit: Quantity | None = None) -> CheckpointError:
        value = self.values.get(name)
        return CheckpointError(
            f"{self.path}: {name} must be {wanted}, got {value!r}",
            code="invalid_config",
            param=name,
            limit=limit,
            actual=str(value),
        )


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The numbers of a configuration that determine the shapes of tensors."""

    vocabulary: int
    positions: int
    width: int
    num_layers: int
    num_heads: int
    ffn_width: int
    activation: Activation
    norm_eps: float


@dataclass(frozen=True, kw_only=True)
class SizeNames:
    """Configuration keys whose names differ between families."""

    width: str
    num_layers: str
    num_heads: str
    ffn_width: str


BERT_SIZES = SizeNames(
    width="hidden_size",
    num_layers="num_hidden_layers",
    num_heads="num_attention_heads",
    ffn_width="intermediate_size",
)


def read_sizes(
    config: EncoderConfig, names: SizeNames, activation: Activation, *, norm_eps: float
) -> Sizes:
    width = config.whole(names.width)
    return Sizes(
        vocabulary=config.whole("vocab_size"),
        positions=config.whole("max_position_embeddings"),
        width=width,
        num_layers=config.whole(names.num_layers),
        num_heads=_num_heads(config, names.num_heads, width),
        ffn_width=config.whole(names.ffn_width),
        activation=activation,
        norm_eps=norm_eps,
    )


def _num_heads(config: EncoderConfig, name: str, width: int) -> int:
    """The number of heads, if it gives heads of a supported size."""
    num_heads = config.whole(name)
    head_dim, rest = divmod(width, num_heads)
    if rest or not MIN_HEAD_DIM <= head_dim <= MAX_HEAD_DIM:
        sizes = f"{MIN_HEAD_DIM} to {MAX_HEAD_DIM}"
        wanted = f"a number that divides a width of {width} into heads of {sizes}"
        raise config.error(name, wanted, limit=sizes)
    return num_heads
