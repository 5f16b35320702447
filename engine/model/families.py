"""Encoder families: reads the configuration and tensors of each into `EncoderWeights`.

BERT, RoBERTa, XLM-R and DistilBERT share one architecture (learned positions, post-norm) under
different names and are read here; modernbert.py reads another. To add a family, write a reader and
add it to `READERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from engine.checkpoint.folder import Family
from engine.model.encoder_config import BERT_SIZES, EncoderConfig, SizeNames, Sizes, read_sizes
from engine.model.linear import pack
from engine.model.modernbert import read_modernbert
from engine.model.weights import EncoderWeights, LayerWeights, TensorReader


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
    sizes = read_sizes(config, DISTILBERT_SIZES, config.activation("activation"), norm_eps=1e-12)
    return _read(reader, sizes, DISTILBERT_LAYER, first_position=0)


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


def _bert_sizes(config: EncoderConfig) -> Sizes:
    norm_eps = config.not_negative("layer_norm_eps", default=1e-12)
    return read_sizes(config, BERT_SIZES, config.activation("hidden_act"), norm_eps=norm_eps)
