"""Encoder families: reads the configuration and tensors of each into `EncoderWeights`.

BERT, RoBERTa, XLM-R and DistilBERT share one architecture (learned positions, post-norm) under
different names. ModernBERT is another: rotary positions, pre-norm, gated feed-forward layers, and
local layers. To add a family, write a reader and add it to `READERS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from engine.checkpoint.folder import Family
from engine.errors import CheckpointError, Quantity
from engine.model.layers import pack
from engine.model.weights import (
    ACTIVATIONS,
    Activation,
    Affine,
    EncoderWeights,
    LayerWeights,
    Linear,
    Rotary,
    TensorReader,
)
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
class LayerNames:
    """Names of one layer's tensors, after the layer's prefix."""

    prefix: str
    qkv: tuple[str, str, str]
    attention_out: str
    attention_norm: str
    ffn_in: str
    ffn_out: str
    ffn_norm: str


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
DISTILBERT_SIZES = SizeNames(
    width="dim", num_layers="n_layers", num_heads="n_heads", ffn_width="hidden_dim"
)
BERT_LAYER = LayerNames(
    prefix="encoder.layer",
    qkv=("attention.self.query", "attention.self.key", "attention.self.value"),
    attention_out="attention.output.dense",
    attention_norm="attention.output.LayerNorm",
    ffn_in="intermediate.dense",
    ffn_out="output.dense",
    ffn_norm="output.LayerNorm",
)
DISTILBERT_LAYER = LayerNames(
    prefix="transformer.layer",
    qkv=("attention.q_lin", "attention.k_lin", "attention.v_lin"),
    attention_out="attention.out_lin",
    attention_norm="sa_layer_norm",
    ffn_in="ffn.lin1",
    ffn_out="ffn.lin2",
    ffn_norm="output_layer_norm",
)

_LOCAL, _GLOBAL = "sliding_attention", "full_attention"
"""The two kinds of ModernBERT layers in newer configurations."""


def read_bert(config: EncoderConfig, reader: TensorReader) -> EncoderWeights:
    return _read(reader, _bert_sizes(config), BERT_LAYER, first_position=0)


def read_roberta(config: EncoderConfig, reader: TensorReader) -> EncoderWeights:
    """RoBERTa counts positions from the one after its padding token's id."""
    sizes = _bert_sizes(config)
    first_position = config.whole("pad_token_id", default=1, least=0) + 1
    if first_position >= sizes.positions:
        most = sizes.positions - 2
        wanted = f"at most {most}, since the {sizes.positions} positions count from after it"
        raise config.error("pad_token_id", wanted, limit=most)
    return _read(reader, sizes, BERT_LAYER, first_position=first_position)


def read_distilbert(config: EncoderConfig, reader: TensorReader) -> EncoderWeights:
    sizes = _sizes(config, DISTILBERT_SIZES, config.activation("activation"), norm_eps=1e-12)
    return _read(reader, sizes, DISTILBERT_LAYER, first_position=0)


def read_modernbert(config: EncoderConfig, reader: TensorReader) -> EncoderWeights:
    """Rotary positions, pre-norm, gated feed-forward layers, local layers between global ones."""
    norm_eps = config.not_negative("norm_eps", default=1e-5)
    sizes = _sizes(config, BERT_SIZES, config.activation("hidden_activation"), norm_eps=norm_eps)
    norm_bias = config.switch("norm_bias")
    return EncoderWeights(
        words=reader.words("embeddings.tok_embeddings.weight", sizes.vocabulary, sizes.width),
        positions=None,
        trained_positions=sizes.positions,
        embedding_norm=reader.norm("embeddings.norm", sizes.width, bias=norm_bias),
        layers=tuple(
            _read_modern_layer(config, reader, sizes, index) for index in range(sizes.num_layers)
        ),
        num_heads=sizes.num_heads,
        activation=sizes.activation,
        norm_eps=sizes.norm_eps,
        arrangement="pre_norm",
    )


READERS: Mapping[Family, Callable[[EncoderConfig, TensorReader], EncoderWeights]] = {
    "bert": read_bert,
    "roberta": read_roberta,
    "xlm-roberta": read_roberta,
    "distilbert": read_distilbert,
    "modernbert": read_modernbert,
}


def read_encoder(family: Family, config: EncoderConfig, reader: TensorReader) -> EncoderWeights:
    return READERS[family](config, reader)


def _read(
    reader: TensorReader, sizes: Sizes, names: LayerNames, *, first_position: int
) -> EncoderWeights:
    width = sizes.width
    positions = _read_positions(reader, sizes)[first_position:]
    return EncoderWeights(
        words=reader.words("embeddings.word_embeddings.weight", sizes.vocabulary, width),
        positions=positions,
        trained_positions=len(positions),
        embedding_norm=reader.norm("embeddings.LayerNorm", width),
        layers=tuple(_read_layer(reader, sizes, names, index) for index in range(sizes.num_layers)),
        num_heads=sizes.num_heads,
        activation=sizes.activation,
        norm_eps=sizes.norm_eps,
    )


def _read_positions(reader: TensorReader, sizes: Sizes) -> Tensor:
    """The position table, with token type 0 added in, since every text has that type."""
    positions = reader.tensor("embeddings.position_embeddings.weight", sizes.positions, sizes.width)
    token_types = "embeddings.token_type_embeddings.weight"
    if not reader.has(token_types):
        return positions
    return positions + reader.first_row(token_types, sizes.width)


def _read_layer(reader: TensorReader, sizes: Sizes, names: LayerNames, index: int) -> LayerWeights:
    at = f"{names.prefix}.{index}"
    width, ffn_width = sizes.width, sizes.ffn_width
    query, key, value = (f"{at}.{part}" for part in names.qkv)
    packed = partial(pack, dtype=reader.product_dtype)
    return LayerWeights(
        qkv=packed(reader.stacked((query, key, value), width, width)),
        attention_out=packed(reader.linear(f"{at}.{names.attention_out}", width, width)),
        attention_norm=reader.norm(f"{at}.{names.attention_norm}", width),
        ffn_in=packed(reader.linear(f"{at}.{names.ffn_in}", ffn_width, width)),
        ffn_out=packed(reader.linear(f"{at}.{names.ffn_out}", width, ffn_width)),
        ffn_norm=reader.norm(f"{at}.{names.ffn_norm}", width),
    )


def _read_modern_layer(
    config: EncoderConfig, reader: TensorReader, sizes: Sizes, index: int
) -> LayerWeights:
    at, width, ffn_width = f"layers.{index}", sizes.width, sizes.ffn_width
    is_last = index == sizes.num_layers - 1
    is_local = _layer_is_local(config, index)
    biases = {part: config.switch(f"{part}_bias") for part in ("attention", "mlp", "norm")}

    def read_linear(name: str, num_out: int, num_in: int, part: str) -> Linear:
        layer = reader.linear(f"{at}.{name}", num_out, num_in, bias=biases[part])
        return pack(layer, reader.product_dtype)

    def read_norm(name: str) -> Affine:
        return reader.norm(name, width, bias=biases["norm"])

    return LayerWeights(
        qkv=read_linear("attn.Wqkv", 3 * width, width, "attention"),
        attention_out=read_linear("attn.Wo", width, width, "attention"),
        # The first layer has none: the embedding's norm comes before it.
        attention_norm=read_norm(f"{at}.attn_norm") if index else None,
        ffn_in=read_linear("mlp.Wi", 2 * ffn_width, width, "mlp"),
        ffn_out=read_linear("mlp.Wo", width, ffn_width, "mlp"),
        ffn_norm=read_norm(f"{at}.mlp_norm"),
        rotary=_rotary(config, is_local=is_local),
        half_window=_half_window(config) if is_local else None,
        closing_norm=read_norm("final_norm") if is_last else None,
    )


def _layer_is_local(config: EncoderConfig, index: int) -> bool:
    """Newer configurations name the kind of each layer. In older ones every third is global."""
    named = config.values.get("layer_types")
    if isinstance(named, list) and index < len(named):
        if named[index] not in (_LOCAL, _GLOBAL):
            raise config.error("layer_types", f"a list of {_LOCAL} and {_GLOBAL}")
        return bool(named[index] == _LOCAL)
    every = config.whole("global_attn_every_n_layers", default=3, least=0)
    return bool(index % max(every, 1))


def _half_window(config: EncoderConfig) -> int:
    """The configuration states the size of the whole window, half of it on either side."""
    return config.whole("local_attention", default=128, least=0) // 2


def _rotary(config: EncoderConfig, *, is_local: bool) -> Rotary:
    """The base for one kind of layer, from its newer or its older key."""
    own = config.part("rope_parameters", _LOCAL if is_local else _GLOBAL)
    if own is not None:
        if own.values.get("rope_type", "default") != "default":
            raise own.error("rope_type", "'default'", limit="default")
        return Rotary(own.positive("rope_theta"))
    name, default = ("local_rope_theta", 1e4) if is_local else ("global_rope_theta", 1.6e5)
    return Rotary(config.positive(name, default=default))


def _bert_sizes(config: EncoderConfig) -> Sizes:
    norm_eps = config.not_negative("layer_norm_eps", default=1e-12)
    return _sizes(config, BERT_SIZES, config.activation("hidden_act"), norm_eps=norm_eps)


def _sizes(
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
