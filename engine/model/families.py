"""Encoder families: where each keeps its tensors and how its configuration names its sizes.

BERT, RoBERTa / XLM-R and DistilBERT are one architecture (learned positions, post-norm) under
different names, so a family is data: a reader from its checkpoint to EncoderWeights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from engine.checkpoint.folder import Family
from engine.errors import CheckpointError
from engine.model.linear import pack
from engine.model.weights import (
    ACTIVATIONS,
    Activation,
    EncoderWeights,
    LayerWeights,
    TensorReader,
)

Config = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The numbers of a configuration that shapes follow from."""

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
    """Names of one layer's parts below its prefix."""

    prefix: str
    qkv: tuple[str, str, str]
    attention_out: str
    attention_norm: str
    ffn_in: str
    ffn_out: str
    ffn_norm: str


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


def read_bert(config: Config, reader: TensorReader) -> EncoderWeights:
    return _read(config, reader, _bert_sizes(config), BERT_LAYER, first_position=0)


def read_roberta(config: Config, reader: TensorReader) -> EncoderWeights:
    """RoBERTa counts positions from just after its padding token's id."""
    first_position = _number(config, "pad_token_id", default=1) + 1
    return _read(config, reader, _bert_sizes(config), BERT_LAYER, first_position=first_position)


def read_distilbert(config: Config, reader: TensorReader) -> EncoderWeights:
    sizes = Sizes(
        vocabulary=_number(config, "vocab_size"),
        positions=_number(config, "max_position_embeddings"),
        width=_number(config, "dim"),
        num_layers=_number(config, "n_layers"),
        num_heads=_number(config, "n_heads"),
        ffn_width=_number(config, "hidden_dim"),
        activation=_activation(config, "activation"),
        norm_eps=1e-12,
    )
    return _read(config, reader, sizes, DISTILBERT_LAYER, first_position=0)


READERS: Mapping[Family, Callable[[Config, TensorReader], EncoderWeights]] = {
    "bert": read_bert,
    "roberta": read_roberta,
    "xlm-roberta": read_roberta,
    "distilbert": read_distilbert,
}


def read_encoder(family: Family, config: Config, reader: TensorReader) -> EncoderWeights:
    return READERS[family](config, reader)


def _read(
    config: Config, reader: TensorReader, sizes: Sizes, names: LayerNames, *, first_position: int
) -> EncoderWeights:
    _check_heads(sizes)
    width = sizes.width
    return EncoderWeights(
        words=reader.tensor("embeddings.word_embeddings.weight", sizes.vocabulary, width),
        positions=_read_positions(reader, sizes)[first_position:],
        embedding_norm=reader.norm("embeddings.LayerNorm", width),
        layers=tuple(_read_layer(reader, sizes, names, index) for index in range(sizes.num_layers)),
        num_heads=sizes.num_heads,
        activation=sizes.activation,
        norm_eps=sizes.norm_eps,
    )


def _read_positions(reader: TensorReader, sizes: Sizes) -> Tensor:
    """The position table; every text is of token type 0, so that row is part of each position."""
    positions = reader.tensor("embeddings.position_embeddings.weight", sizes.positions, sizes.width)
    token_types = "embeddings.token_type_embeddings.weight"
    if not reader.has(token_types):
        return positions
    return positions + reader.tensor(token_types, None, sizes.width)[0]


def _read_layer(reader: TensorReader, sizes: Sizes, names: LayerNames, index: int) -> LayerWeights:
    at = f"{names.prefix}.{index}"
    width, ffn_width = sizes.width, sizes.ffn_width
    query, key, value = (f"{at}.{part}" for part in names.qkv)
    return LayerWeights(
        qkv=pack(reader.stacked((query, key, value), width, width)),
        attention_out=pack(reader.linear(f"{at}.{names.attention_out}", width, width)),
        attention_norm=reader.norm(f"{at}.{names.attention_norm}", width),
        ffn_in=pack(reader.linear(f"{at}.{names.ffn_in}", ffn_width, width)),
        ffn_out=pack(reader.linear(f"{at}.{names.ffn_out}", width, ffn_width)),
        ffn_norm=reader.norm(f"{at}.{names.ffn_norm}", width),
    )


def _bert_sizes(config: Config) -> Sizes:
    return Sizes(
        vocabulary=_number(config, "vocab_size"),
        positions=_number(config, "max_position_embeddings"),
        width=_number(config, "hidden_size"),
        num_layers=_number(config, "num_hidden_layers"),
        num_heads=_number(config, "num_attention_heads"),
        ffn_width=_number(config, "intermediate_size"),
        activation=_activation(config, "hidden_act"),
        norm_eps=float(config.get("layer_norm_eps", 1e-12)),
    )


def _number(config: Config, name: str, *, default: int | None = None) -> int:
    value = config.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise CheckpointError(
            f"config.json needs a whole number {name}, got {value!r}",
            code="invalid_config",
            param=name,
            actual=str(value),
        )
    return value


def _activation(config: Config, name: str) -> Activation:
    value = config.get(name, "gelu")
    if value not in ACTIVATIONS:
        raise CheckpointError(
            f"config.json asks for activation {value!r}; known are {', '.join(ACTIVATIONS)}",
            code="invalid_config",
            param=name,
            actual=str(value),
        )
    return ACTIVATIONS[value]


def _check_heads(sizes: Sizes) -> None:
    if sizes.num_heads < 1 or sizes.width % sizes.num_heads:
        raise CheckpointError(
            f"a width of {sizes.width} does not divide into {sizes.num_heads} heads",
            code="invalid_config",
            param="num_attention_heads",
            actual=sizes.num_heads,
        )
