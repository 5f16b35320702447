"""The encoders on packed sequences, compared with transformers on padded ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from engine.config import EngineConfig
from engine.errors import CheckpointError
from engine.model.embedding_model import load_model
from engine.model.encoder import parts_of
from engine.model.positions import positions_in_sequences

if TYPE_CHECKING:
    from tests.conftest import WriteCheckpoint

CPU = EngineConfig(device="cpu")
FAMILIES = ("bert", "roberta", "xlm-roberta", "distilbert", "modernbert")
LENGTHS = (5, 1, 40, 17)


def states_of_transformers(folder: Path, sequences: list[list[int]]) -> list[torch.Tensor]:
    from transformers import AutoModel

    model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad():
        return [model(torch.tensor([ids])).last_hidden_state[0] for ids in sequences]


def random_sequences(vocabulary: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    return [
        torch.randint(3, vocabulary, (length,), generator=generator).tolist() for length in LENGTHS
    ]


def packed(sequences: list[list[int]]) -> tuple[torch.Tensor, list[int]]:
    bounds = [0]
    for ids in sequences:
        bounds.append(bounds[-1] + len(ids))
    return torch.tensor([token for ids in sequences for token in ids]), bounds


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("key_prefix", [False, True], ids=["bare", "prefixed"])
def test_states_equal_those_of_transformers(
    family: str, key_prefix: bool, write_checkpoint: WriteCheckpoint
) -> None:
    own = {"xlm-roberta": "roberta.", "modernbert": "model."}
    prefix = own.get(family, f"{family}.") if key_prefix else ""
    folder = write_checkpoint(family, key_prefix=prefix)
    model = load_model(str(folder), config=CPU)
    sequences = random_sequences(len(model.encoder.weights.words))
    ids, bounds = packed(sequences)
    with torch.no_grad():
        states = model.encoder(ids, bounds)
    expected = torch.cat(states_of_transformers(folder, sequences))
    assert (states - expected).abs().max() < 2e-5


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu", "silu"])
def test_activations(activation: str, write_checkpoint: WriteCheckpoint) -> None:
    folder = write_checkpoint("bert", hidden_act=activation)
    model = load_model(str(folder), config=CPU)
    sequences = random_sequences(len(model.encoder.weights.words))
    with torch.no_grad():
        states = model.encoder(*packed(sequences))
    assert (states - torch.cat(states_of_transformers(folder, sequences))).abs().max() < 2e-5


def test_gradients_take_the_plain_path_to_the_same_states(
    write_checkpoint: WriteCheckpoint,
) -> None:
    model = load_model(str(write_checkpoint("bert")), config=CPU)
    ids, bounds = packed(random_sequences(len(model.encoder.weights.words)))
    with torch.no_grad():
        fast = model.encoder(ids, bounds)
    assert (model.encoder(ids, bounds) - fast).abs().max() < 2e-5


def test_positions_restart_in_each_sequence() -> None:
    positions = positions_in_sequences([0, 3, 3, 5], torch.device("cpu"))
    assert positions.tolist() == [0, 1, 2, 0, 1]


def test_positions_beyond_the_table_are_tiled(write_checkpoint: WriteCheckpoint) -> None:
    model = load_model(str(write_checkpoint("bert")), config=CPU)
    table = model.info.position_table
    with torch.no_grad():
        length = 2 * table + 3
        embedded = model.encoder.embed(torch.full((length,), 7), torch.arange(length), length)
    assert torch.equal(embedded[:table], embedded[table : 2 * table])
    assert torch.equal(embedded[:3], embedded[2 * table :])


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"intermediate_size": 32}, "wrong_tensor_shape"),
        ({"num_hidden_layers": 3}, "missing_tensor"),
    ],
    ids=str,
)
def test_a_configuration_that_contradicts_its_tensors(
    change: dict[str, Any], code: str, write_checkpoint: WriteCheckpoint
) -> None:
    assert refusal(with_config(write_checkpoint("bert"), change)).code == code


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [
        ("bert", "hidden_act", "mish"),
        ("bert", "hidden_act", ["gelu"]),
        ("bert", "hidden_act", {}),
        ("bert", "hidden_size", "wide"),
        ("bert", "num_attention_heads", 5),
        ("bert", "num_attention_heads", 64),  # of one channel each
        ("bert", "num_hidden_layers", 0),
        ("bert", "vocab_size", True),
        ("bert", "layer_norm_eps", None),
        ("bert", "layer_norm_eps", [1e-5]),
        ("bert", "layer_norm_eps", -1e-5),
        ("bert", "layer_norm_eps", float("nan")),
        ("bert", "layer_norm_eps", float("inf")),
        ("bert", "layer_norm_eps", "small"),
        ("distilbert", "n_heads", 64),
        ("roberta", "pad_token_id", None),
        ("roberta", "pad_token_id", 513),  # no position is left
    ],
)
def test_invalid_values_of_a_configuration(
    family: str, key: str, value: object, write_checkpoint: WriteCheckpoint
) -> None:
    folder = with_config(write_checkpoint(family), {key: value})
    error = refusal(folder)
    assert (error.code, error.param, error.actual) == ("invalid_config", key, str(value))
    assert error.message.startswith(f"{folder / 'config.json'}: {key} must be ")
    assert error.message.endswith(f"got {value!r}")


@pytest.mark.parametrize(("written", "meant"), [("1e-12", 1e-12), (0, 0.0), (1, 1.0)])
def test_small_numbers_in_every_notation(
    written: object, meant: float, write_checkpoint: WriteCheckpoint
) -> None:
    folder = with_config(write_checkpoint("bert"), {"layer_norm_eps": written})
    assert load_model(str(folder), config=CPU).encoder.weights.norm_eps == meant


def test_an_integer_too_large_for_a_float(write_checkpoint: WriteCheckpoint) -> None:
    error = refusal(with_config(write_checkpoint("bert"), {"layer_norm_eps": 10**400}))
    assert (error.code, error.param) == ("invalid_config", "layer_norm_eps")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda tensor: tensor * np.float32("nan"), "wrong_tensor_values"),
        (lambda tensor: np.full_like(tensor, np.inf), "wrong_tensor_values"),
        (lambda tensor: tensor.astype(np.float64) + 1e300, "wrong_tensor_values"),
        (lambda tensor: tensor.astype(np.int8), "wrong_tensor_dtype"),
        (lambda tensor: tensor > 0, "wrong_tensor_dtype"),
        (lambda tensor: tensor[:0], "wrong_tensor_shape"),
    ],
    ids=["nan", "inf", "beyond float32", "int8", "bool", "empty"],
)
@pytest.mark.parametrize(
    "name",
    ["embeddings.token_type_embeddings.weight", "encoder.layer.1.attention.self.query.weight"],
)
def test_tensors_that_are_no_weights(
    name: str,
    change: Callable[[NDArray[np.float32]], NDArray[Any]],
    code: str,
    write_checkpoint: WriteCheckpoint,
) -> None:
    """Attention would turn many of them into finite vectors."""
    path = write_checkpoint("bert") / "model.safetensors"
    tensors = load_file(path)
    save_file(tensors | {name: change(tensors[name])}, path)
    error = refusal(path.parent)
    assert (error.code, error.param) == (code, name)
    assert f"{name} of {path} has" in error.message


def with_config(folder: Path, change: dict[str, Any]) -> Path:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | change))
    return folder


def refusal(folder: Path) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        load_model(str(folder), config=CPU)
    return caught.value


@pytest.mark.parametrize(
    ("bounds", "parts"),
    [
        ([0, 7], [[0, 7]]),
        ([0, 4, 10], [[0, 4, 10]]),
        ([0, 4, 10, 11], [[0, 4, 10], [10, 11]]),
        ([0, 25, 26, 60, 64], [[0, 25], [25, 26], [26, 60], [60, 64]]),
        ([0, 0, 0, 10, 10, 11], [[0, 0, 0, 10, 10], [10, 11]]),
    ],
)
def test_parts_are_neighbouring_sequences_of_so_many_rows_or_one(
    bounds: list[int], parts: list[list[int]]
) -> None:
    assert parts_of(bounds, 10) == parts
