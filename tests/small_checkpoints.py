"""Small random checkpoints, in the form that transformers and sentence-transformers read.

Configurations and tensor names are as transformers writes them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Shape = tuple[int, ...]


def write_json(path: Path, value: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value, indent=2), encoding="utf-8")


def write_modules(folder: Path, *, pooling: str, normalize: bool) -> None:
    kinds = [("Transformer", "")]
    if pooling != "none":
        kinds.append(("Pooling", "1_Pooling"))
    if normalize:
        kinds.append(("Normalize", "2_Normalize"))
    modules = [
        {"idx": idx, "name": str(idx), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for idx, (kind, path) in enumerate(kinds)
    ]
    write_json(folder / "modules.json", modules)
    if pooling == "none":
        return
    modes = {"mean": "mean_tokens", "cls": "cls_token", "max": "max_tokens"}
    switches = {f"pooling_mode_{key}": pooling == mode for mode, key in modes.items()}
    write_json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": 64, **switches})


def config_of(family: str) -> dict[str, Any]:
    if family == "distilbert":
        return {
            "model_type": family,
            "architectures": ["DistilBertModel"],
            "dim": 64,
            "hidden_dim": 128,
            "n_layers": 2,
            "n_heads": 4,
            "activation": "gelu",
            "max_position_embeddings": 512,
            "sinusoidal_pos_embds": False,
            "pad_token_id": 0,
        }
    if family == "modernbert":
        return _modernbert_config()
    is_roberta = family != "bert"
    architecture = {"bert": "Bert", "roberta": "Roberta", "xlm-roberta": "XLMRoberta"}[family]
    return {
        "model_type": family,
        "architectures": [f"{architecture}Model"],
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-5 if is_roberta else 1e-12,
        "max_position_embeddings": 514 if is_roberta else 512,
        "type_vocab_size": 1 if is_roberta else 2,
        "pad_token_id": 1 if is_roberta else 0,
        "position_embedding_type": "absolute",
    }


def _modernbert_config() -> dict[str, Any]:
    return {
        "model_type": "modernbert",
        "architectures": ["ModernBertModel"],
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "hidden_activation": "gelu",
        "norm_eps": 1e-5,
        "norm_bias": False,
        "attention_bias": False,
        "mlp_bias": False,
        "max_position_embeddings": 8192,
        "global_attn_every_n_layers": 3,
        "local_attention": 16,
        "global_rope_theta": 160000.0,
        "local_rope_theta": 10000.0,
        "pad_token_id": 0,
        "cls_token_id": 2,
        "sep_token_id": 3,
        "bos_token_id": 2,
        "eos_token_id": 3,
    }


def _linear(name: str, width_in: int, width_out: int) -> Iterator[tuple[str, Shape]]:
    yield f"{name}.weight", (width_out, width_in)
    yield f"{name}.bias", (width_out,)


def _layer_norm(name: str, width: int) -> Iterator[tuple[str, Shape]]:
    yield f"{name}.weight", (width,)
    yield f"{name}.bias", (width,)


def _bert_shapes(config: Mapping[str, Any]) -> Iterator[tuple[str, Shape]]:
    width, inner = config["hidden_size"], config["intermediate_size"]
    yield "embeddings.word_embeddings.weight", (config["vocab_size"], width)
    yield "embeddings.position_embeddings.weight", (config["max_position_embeddings"], width)
    yield "embeddings.token_type_embeddings.weight", (config["type_vocab_size"], width)
    yield from _layer_norm("embeddings.LayerNorm", width)
    for index in range(config["num_hidden_layers"]):
        layer = f"encoder.layer.{index}"
        for part in ("query", "key", "value"):
            yield from _linear(f"{layer}.attention.self.{part}", width, width)
        yield from _linear(f"{layer}.attention.output.dense", width, width)
        yield from _layer_norm(f"{layer}.attention.output.LayerNorm", width)
        yield from _linear(f"{layer}.intermediate.dense", width, inner)
        yield from _linear(f"{layer}.output.dense", inner, width)
        yield from _layer_norm(f"{layer}.output.LayerNorm", width)
    yield from _linear("pooler.dense", width, width)


def _distilbert_shapes(config: Mapping[str, Any]) -> Iterator[tuple[str, Shape]]:
    width, inner = config["dim"], config["hidden_dim"]
    yield "embeddings.word_embeddings.weight", (config["vocab_size"], width)
    yield "embeddings.position_embeddings.weight", (config["max_position_embeddings"], width)
    yield from _layer_norm("embeddings.LayerNorm", width)
    for index in range(config["n_layers"]):
        layer = f"transformer.layer.{index}"
        for part in ("q_lin", "k_lin", "v_lin", "out_lin"):
            yield from _linear(f"{layer}.attention.{part}", width, width)
        yield from _layer_norm(f"{layer}.sa_layer_norm", width)
        yield from _linear(f"{layer}.ffn.lin1", width, inner)
        yield from _linear(f"{layer}.ffn.lin2", inner, width)
        yield from _layer_norm(f"{layer}.output_layer_norm", width)


def _modernbert_shapes(config: Mapping[str, Any]) -> Iterator[tuple[str, Shape]]:
    width, inner = config["hidden_size"], config["intermediate_size"]
    yield "embeddings.tok_embeddings.weight", (config["vocab_size"], width)
    yield "embeddings.norm.weight", (width,)
    for index in range(config["num_hidden_layers"]):
        layer = f"layers.{index}"
        yield f"{layer}.attn.Wqkv.weight", (3 * width, width)
        yield f"{layer}.attn.Wo.weight", (width, width)
        if index:
            yield f"{layer}.attn_norm.weight", (width,)
        yield f"{layer}.mlp.Wi.weight", (2 * inner, width)
        yield f"{layer}.mlp.Wo.weight", (width, inner)
        yield f"{layer}.mlp_norm.weight", (width,)
    yield "final_norm.weight", (width,)


_SHAPES_OF_FAMILY = {"distilbert": _distilbert_shapes, "modernbert": _modernbert_shapes}


def random_tensors(shapes: Mapping[str, Shape], *, seed: int) -> dict[str, NDArray[np.float32]]:
    """Weights wide enough that attention is far from uniform, norms near one."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for name, shape in shapes.items():
        is_norm = "norm" in name.lower() and name.endswith(".weight")
        scale = 0.1 if len(shape) == 1 else 2.0 / shape[-1] ** 0.5
        values = rng.standard_normal(shape) * scale + float(is_norm)
        tensors[name] = values.astype(np.float32)
    return tensors


def shapes_of(family: str, config: Mapping[str, Any]) -> dict[str, Shape]:
    """By tensor name."""
    return dict(_SHAPES_OF_FAMILY.get(family, _bert_shapes)(config))
