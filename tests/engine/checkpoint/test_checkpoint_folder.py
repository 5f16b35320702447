"""read_checkpoint: valid folders of every kind, and every way in which one can be invalid."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from engine.checkpoint.folder import FAMILIES, read_checkpoint
from engine.errors import CheckpointError

if TYPE_CHECKING:
    from tests.conftest import WriteCheckpoint

MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


def edit_json(path: Path, **changes: object) -> None:
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**content, **changes}))


def write_modules(folder: Path, *kinds_and_paths: tuple[str, str]) -> None:
    modules = [{"type": kind, "path": path} for kind, path in kinds_and_paths]
    (folder / "modules.json").write_text(json.dumps(modules))


def refusal(folder: Path, *, expected_sha256: str | None = None) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(folder, expected_sha256=expected_sha256)
    return caught.value


def test_published_minilm(minilm_folder: Path) -> None:
    checkpoint = read_checkpoint(minilm_folder, expected_sha256=MINILM_SHA256)
    assert checkpoint.family == "bert"
    assert checkpoint.pooling == "mean"
    assert checkpoint.normalize
    assert checkpoint.max_seq_length == 256
    assert not checkpoint.lowercase
    assert checkpoint.config["hidden_size"] == 384
    assert checkpoint.sha256 == MINILM_SHA256
    assert (checkpoint.prompts, checkpoint.default_prompt_name) == ({}, None)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("with_head", [False, True])
def test_every_family(write_checkpoint: WriteCheckpoint, family: str, with_head: bool) -> None:
    from transformers import AutoModel

    own = {"xlm-roberta": "roberta.", "modernbert": "model."}
    prefix = own.get(family, f"{family}.") if with_head else ""
    folder = write_checkpoint(family, key_prefix=prefix)
    checkpoint = read_checkpoint(folder)
    assert checkpoint.family == family
    theirs = AutoModel.from_pretrained(folder).state_dict()
    assert len(theirs) == len(checkpoint.weights.names)
    for name, tensor in theirs.items():
        assert name in checkpoint.weights
        assert checkpoint.weights.shape(name) == tuple(tensor.shape)
        assert torch.equal(checkpoint.weights.tensor(name), tensor)


def test_without_modules_json_the_mean_is_pooled_and_normalised(
    write_checkpoint: WriteCheckpoint, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint = read_checkpoint(write_checkpoint(modules=False))
    assert (checkpoint.pooling, checkpoint.normalize) == ("mean", True)
    assert "no modules.json" in caplog.text


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
@pytest.mark.parametrize("normalize", [False, True])
def test_pooling_switches(write_checkpoint: WriteCheckpoint, pooling: str, normalize: bool) -> None:
    checkpoint = read_checkpoint(write_checkpoint(pooling=pooling, normalize=normalize))
    assert (checkpoint.pooling, checkpoint.normalize) == (pooling, normalize)


@pytest.mark.parametrize("named", ["cls", ["cls"]])
def test_pooling_by_name(write_checkpoint: WriteCheckpoint, named: object) -> None:
    folder = write_checkpoint()
    edit_json(folder / "1_Pooling" / "config.json", pooling_mode=named)
    assert read_checkpoint(folder).pooling == "cls"


@pytest.mark.parametrize(
    "changes",
    [
        {"pooling_mode": "lasttoken"},
        {"pooling_mode": ["mean", "max"]},
        {"pooling_mode_max_tokens": True},
        {"include_prompt": False},
        {"pooling_mode": []},
    ],
)
def test_pooling_that_is_not_supported(
    write_checkpoint: WriteCheckpoint, changes: dict[str, object]
) -> None:
    folder = write_checkpoint()
    edit_json(folder / "1_Pooling" / "config.json", **changes)
    error = refusal(folder)
    assert error.code == "unsupported_pooling"
    assert "1_Pooling" in error.message


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("1_Pooling/config.json", {"pooling_mode": 5}),
        ("1_Pooling/config.json", {"pooling_mode": [1]}),
        ("1_Pooling/config.json", {"pooling_mode": {"mean": True}}),
        ("sentence_bert_config.json", {"max_seq_length": True}),
        ("sentence_bert_config.json", {"do_lower_case": "no"}),
    ],
)
def test_values_of_another_type(
    write_checkpoint: WriteCheckpoint, name: str, change: dict[str, object]
) -> None:
    folder = write_checkpoint()
    edit_json(folder / name, **change)
    error = refusal(folder)
    assert error.code == "invalid_json"
    [(key, value)] = change.items()
    assert f"{folder / name} is not valid: {key} is {value!r}" in error.message


def test_folder_saved_by_sentence_transformers(
    write_checkpoint: WriteCheckpoint, tmp_path: Path
) -> None:
    from sentence_transformers import SentenceTransformer

    folder = write_checkpoint(pooling="cls")
    model = SentenceTransformer(
        str(folder), device="cpu", prompts={"query": "find: "}, default_prompt_name="query"
    )
    model.save(str(tmp_path))
    checkpoint = read_checkpoint(tmp_path)
    assert (checkpoint.pooling, checkpoint.normalize) == ("cls", True)
    assert checkpoint.prompts["query"] == "find: "
    assert checkpoint.default_prompt_name == "query"


def test_modules_without_pooling_keep_the_tokens(write_checkpoint: WriteCheckpoint) -> None:
    folder = write_checkpoint()
    write_modules(folder, ("sentence_transformers.models.Transformer", ""))
    checkpoint = read_checkpoint(folder)
    assert (checkpoint.pooling, checkpoint.normalize) == ("none", False)


def test_transformer_in_a_folder_of_its_own(
    write_checkpoint: WriteCheckpoint, tmp_path: Path
) -> None:
    folder = write_checkpoint(modules=False)
    edit_json(folder / "sentence_roberta_config.json", max_seq_length=128, do_lower_case=True)
    folder.rename(tmp_path / "0_Transformer")
    write_modules(tmp_path, ("sentence_transformers.models.Transformer", "0_Transformer"))
    checkpoint = read_checkpoint(tmp_path)
    assert checkpoint.transformer_folder == tmp_path / "0_Transformer"
    assert checkpoint.max_seq_length == 128
    assert checkpoint.lowercase


@pytest.mark.parametrize(
    "kind", ["sentence_transformers.models.Dense", "custom_code.Transformer", "os.system"]
)
def test_modules_that_are_not_supported_are_named(
    write_checkpoint: WriteCheckpoint, kind: str
) -> None:
    folder = write_checkpoint()
    write_modules(folder, ("sentence_transformers.models.Transformer", ""), (kind, "3_More"))
    error = refusal(folder)
    assert error.code == "unsupported_module"
    assert kind.rpartition(".")[2] in error.message


@pytest.mark.parametrize("place", ["../elsewhere", "/etc"])
def test_modules_cannot_leave_the_folder(write_checkpoint: WriteCheckpoint, place: str) -> None:
    folder = write_checkpoint()
    write_modules(folder, ("sentence_transformers.models.Transformer", place))
    assert "leaves the folder" in refusal(folder).message


def test_unknown_family_names_it_and_the_known_ones(write_checkpoint: WriteCheckpoint) -> None:
    folder = write_checkpoint()
    edit_json(folder / "config.json", model_type="mamba")
    error = refusal(folder)
    assert error.code == "unknown_family"
    assert error.actual == "mamba"
    assert all(family in error.message for family in ("mamba", *FAMILIES))


def test_other_positions_are_refused(write_checkpoint: WriteCheckpoint) -> None:
    error = refusal(write_checkpoint(position_embedding_type="relative_key"))
    assert error.code == "unsupported_config"
    assert "relative_key" in error.message


def test_code_in_the_folder_is_not_run(write_checkpoint: WriteCheckpoint) -> None:
    folder = write_checkpoint()
    marker = folder / "ran"
    (folder / "modeling.py").write_text(f"open({str(marker)!r}, 'w')")
    edit_json(folder / "config.json", auto_map={"AutoModel": "modeling.Model"})
    assert read_checkpoint(folder).family == "bert"
    assert not marker.exists()


@pytest.mark.parametrize(
    "name", ["config.json", "modules.json", "1_Pooling/config.json", "sentence_bert_config.json"]
)
@pytest.mark.parametrize("content", [b"{", b"3", b"\xff\xfe{}", b"", b"[" * 100_000])
def test_malformed_json_names_the_file(
    write_checkpoint: WriteCheckpoint, name: str, content: bytes
) -> None:
    folder = write_checkpoint()
    (folder / name).write_bytes(content)
    error = refusal(folder)
    assert error.code == "invalid_json"
    assert str(folder / name) in error.message


@pytest.mark.parametrize(
    "changes",
    [
        {"prompts": ["a"]},
        {"prompts": {"a": 1}},
        {"default_prompt_name": "query"},
        {"prompts": {"a": "b"}, "default_prompt_name": ["a"]},
    ],
)
def test_malformed_prompts(write_checkpoint: WriteCheckpoint, changes: dict[str, object]) -> None:
    folder = write_checkpoint()
    edit_json(folder / "config_sentence_transformers.json", **changes)
    error = refusal(folder)
    assert error.code == "invalid_json"
    assert "config_sentence_transformers.json" in error.message


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "1_Pooling/config.json"])
def test_missing_files_are_named(write_checkpoint: WriteCheckpoint, name: str) -> None:
    folder = write_checkpoint()
    (folder / name).unlink()
    error = refusal(folder)
    assert error.code == "missing_file"
    assert str(folder / name) in error.message


@pytest.mark.parametrize("keep", [0, 7, 100, 20_000])
def test_truncated_weights_are_named(write_checkpoint: WriteCheckpoint, keep: int) -> None:
    path = write_checkpoint() / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    error = refusal(path.parent)
    assert error.code == "invalid_weights"
    assert str(path) in error.message


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt"])
def test_pickles_are_refused(write_checkpoint: WriteCheckpoint, name: str) -> None:
    folder = write_checkpoint()
    (folder / "model.safetensors").rename(folder / name)
    error = refusal(folder)
    assert error.code == "unsafe_weights"
    assert name in error.message


def test_checksum_mismatch_shows_both_hashes(write_checkpoint: WriteCheckpoint) -> None:
    folder = write_checkpoint()
    actual = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert read_checkpoint(folder, expected_sha256=actual).sha256 == actual
    error = refusal(folder, expected_sha256=MINILM_SHA256)
    assert error.code == "checksum_mismatch"
    assert (error.limit, error.actual) == (MINILM_SHA256, actual)
    assert MINILM_SHA256 in error.message
    assert actual in error.message


def test_missing_tensor_is_named(write_checkpoint: WriteCheckpoint) -> None:
    weights = read_checkpoint(write_checkpoint()).weights
    assert "encoder.layer.7.output.dense.bias" not in weights
    with pytest.raises(CheckpointError, match=r"encoder\.layer\.7\.output\.dense\.bias"):
        weights.tensor("encoder.layer.7.output.dense.bias")


def test_early_names_of_layer_norm(write_checkpoint: WriteCheckpoint) -> None:
    path = write_checkpoint() / "model.safetensors"
    tensors = load_file(path)
    old_names = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    renamed = {}
    for name, tensor in tensors.items():
        for new, old in old_names.items():
            name = name.replace(new, old)
        renamed["bert." + name] = tensor
    save_file(renamed, path)
    weights = read_checkpoint(path.parent).weights
    for name, tensor in tensors.items():
        assert np.array_equal(weights.tensor(name).numpy(), tensor)


def split_into_shards(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    halves = (names[: len(names) // 2], names[len(names) // 2 :])
    weight_map: dict[str, str] = {}
    for number, half in enumerate(halves, start=1):
        file = f"model-{number:05d}-of-00002.safetensors"
        save_file({name: tensors[name] for name in half}, folder / file)
        weight_map |= dict.fromkeys(half, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_shards(write_checkpoint: WriteCheckpoint) -> None:
    folder = write_checkpoint()
    expected = load_file(folder / "model.safetensors")
    split_into_shards(folder)
    checkpoint = read_checkpoint(folder)
    assert len(checkpoint.weights.paths) == 2
    for name, tensor in expected.items():
        assert np.array_equal(checkpoint.weights.tensor(name).numpy(), tensor)
    contents = b"".join(path.read_bytes() for path in checkpoint.weights.paths)
    assert checkpoint.sha256 == hashlib.sha256(contents).hexdigest()


def test_missing_shard_is_named(write_checkpoint: WriteCheckpoint) -> None:
    folder = write_checkpoint()
    split_into_shards(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()
    error = refusal(folder)
    assert error.code == "missing_file"
    assert "model-00002-of-00002.safetensors" in error.message


@pytest.mark.parametrize("shard", ["../model.safetensors", "model.bin"])
def test_index_cannot_point_elsewhere(write_checkpoint: WriteCheckpoint, shard: str) -> None:
    folder = write_checkpoint()
    (folder / "model.safetensors").unlink()
    edit_json(folder / "model.safetensors.index.json", weight_map={"a": shard})
    error = refusal(folder)
    assert error.code == "invalid_json"
    assert shard in error.message
