"""Encoder families: where each keeps its tensors and how its configuration names its sizes.

BERT, RoBERTa / XLM-R and DistilBERT are one architecture (learned positions, post-norm) under
different names; ModernBERT is another (rotary positions, pre-norm, gated, local layers). A family
is data: a reader from its checkpoint to EncoderWeights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from engine.checkpoint.folder import Family
from engine.errors import CheckpointError
from engine.model.linear import pack
from engine.model.weights import (
    ACTIVATIONS,
    Activation,
    Affine,
    EncoderWeights,
    LayerWeights,
    Rotary,
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


def read_modernbert(config: Config, reader: TensorReader) -> EncoderWeights:
    """Rotary positions, pre-norm, a gated inner layer, and local layers between global ones."""
    sizes = replace(
        _bert_sizes(config),
        activation=_activation(config, "hidden_activation"),
        norm_eps=_real(config, "norm_eps", default=1e-5),
    )
    _check_heads(sizes)
    norm_bias = bool(config.get("norm_bias", False))
    return EncoderWeights(
        words=reader.tensor("embeddings.tok_embeddings.weight", sizes.vocabulary, sizes.width),
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


READERS: Mapping[Family, Callable[[Config, TensorReader], EncoderWeights]] = {
    "bert": read_bert,
    "roberta": read_roberta,
    "xlm-roberta": read_roberta,
    "distilbert": read_distilbert,
    "modernbert": read_modernbert,
}


def read_encoder(family: Family, config: Config, reader: TensorReader) -> EncoderWeights:
    return READERS[family](config, reader)


def _read(
    config: Config, reader: TensorReader, sizes: Sizes, names: LayerNames, *, first_position: int
) -> EncoderWeights:
    _check_heads(sizes)
    width = sizes.width
    positions = _read_positions(reader, sizes)[first_position:]
    return EncoderWeights(
        words=reader.tensor("embeddings.word_embeddings.weight", sizes.vocabulary, width),
        positions=positions,
        trained_positions=len(positions),
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


def _read_modern_layer(
    config: Config, reader: TensorReader, sizes: Sizes, index: int
) -> LayerWeights:
    at, width, ffn_width = f"layers.{index}", sizes.width, sizes.ffn_width
    is_last = index == sizes.num_layers - 1
    is_local = _layer_is_local(config, index)
    biases = {
        part: bool(config.get(f"{part}_bias", False)) for part in ("attention", "mlp", "norm")
    }

    def read_linear(name: str, num_out: int, num_in: int, part: str) -> Affine:
        return pack(reader.linear(f"{at}.{name}", num_out, num_in, bias=biases[part]))

    def read_norm(name: str) -> Affine:
        return reader.norm(name, width, bias=biases["norm"])

    return LayerWeights(
        qkv=read_linear("attn.Wqkv", 3 * width, width, "attention"),
        attention_out=read_linear("attn.Wo", width, width, "attention"),
        # The embedding's own norm stands before the first layer.
        attention_norm=read_norm(f"{at}.attn_norm") if index else None,
        ffn_in=read_linear("mlp.Wi", 2 * ffn_width, width, "mlp"),
        ffn_out=read_linear("mlp.Wo", width, ffn_width, "mlp"),
        ffn_norm=read_norm(f"{at}.mlp_norm"),
        rotary=_rotary(config, is_local=is_local),
        # The configuration counts the keys of a whole window, half of them on either side.
        half_window=_number(config, "local_attention", default=128) // 2 if is_local else None,
        closing_norm=read_norm("final_norm") if is_last else None,
    )


def _layer_is_local(config: Config, index: int) -> bool:
    """Named layer by layer in newer configurations; every third is global in older ones."""
    named = config.get("layer_types")
    if isinstance(named, list) and index < len(named):
        return bool(named[index] == "sliding_attention")
    every = _number(config, "global_attn_every_n_layers", default=3)
    return bool(index % max(every, 1))


def _rotary(config: Config, *, is_local: bool) -> Rotary:
    """The base for one kind of layer, under its newer or its older name."""
    kind = "sliding_attention" if is_local else "full_attention"
    parameters = config.get("rope_parameters")
    own = parameters.get(kind) if isinstance(parameters, Mapping) else None
    if isinstance(own, Mapping):
        if own.get("rope_type", "default") != "default":
            raise CheckpointError(
                f"config.json asks for {own['rope_type']!r} rotary positions; known is 'default'",
                code="invalid_config",
                param="rope_parameters",
                limit="default",
                actual=str(own["rope_type"]),
            )
        return Rotary(_real(own, "rope_theta"))
    name, default = ("local_rope_theta", 1e4) if is_local else ("global_rope_theta", 1.6e5)
    return Rotary(_real(config, name, default=default))


def _real(config: Config, name: str, *, default: float | None = None) -> float:
    value = config.get(name, default)
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        raise CheckpointError(
            f"config.json needs a positive number {name}, got {value!r}",
            code="invalid_config",
            param=name,
            actual=str(value),
        )
    return float(value)


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
