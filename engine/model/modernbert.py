"""Reads ModernBERT encoders: rotary positions, pre-norm, gated feed-forward layers, and local
layers between global ones."""

from __future__ import annotations

from engine.model.encoder_config import BERT_SIZES, EncoderConfig, Sizes, read_sizes
from engine.model.linear import pack
from engine.model.weights import Affine, EncoderWeights, LayerWeights, Linear, Rotary, TensorReader

_LOCAL, _GLOBAL = "sliding_attention", "full_attention"
"""The two kinds of ModernBERT layers in newer configurations."""


def read_modernbert(config: EncoderConfig, reader: TensorReader) -> EncoderWeights:
    """Rotary positions, pre-norm, gated feed-forward layers, local layers between global ones."""
    norm_eps = config.not_negative("norm_eps", default=1e-5)
    sizes = read_sizes(
        config, BERT_SIZES, config.activation("hidden_activation"), norm_eps=norm_eps
    )
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
