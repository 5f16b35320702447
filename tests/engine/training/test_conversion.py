"""Converting a checkpoint: the comparison, the copied files, and failures."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from engine import Engine
from engine.checkpoint.calibration import FILE_NAME
from engine.config import EngineConfig
from engine.errors import CheckpointError, InvalidInput
from engine.model.embedding_model import load_model
from engine.model.pooling import PooledSpan, pool
from engine.training import convert
from engine.training.calibrate import CalibrationPlan, calibrate, other_windows, sample_windows
from engine.training.convert import adapt_model, built_in_texts, copy_model, read_texts
from engine.training.encode import ids_of, read_whole, vectors_of, window_means
from engine.training.losses import unit_vectors
from engine.training.model_folder import MARK

if TYPE_CHECKING:
    from engine.checkpoint.folder import Pooling
    from tests.conftest import WriteCheckpoint

CPU = EngineConfig(device="cpu")
PLAN = CalibrationPlan(block_size=16, sample_tokens=64, num_samples=4)
TEXTS = built_in_texts()[:20]


def test_a_calibration_measured_in_bfloat16_is_float32(
    write_checkpoint: WriteCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, where states are bfloat16 by default."""
    monkeypatch.setattr("engine.platform.device.Placement.tensor_dtype", torch.bfloat16)
    monkeypatch.setattr("engine.platform.device.cpu_multiplies_bfloat16", lambda: True)
    # oneDNN packs bfloat16 weights only on a CPU that has units for it.
    monkeypatch.setattr("engine.model.families.pack", lambda layer, dtype: layer)
    folder = str(write_checkpoint("bert"))
    teacher = load_model(folder, config=replace(CPU, dtype="bfloat16"))
    assert teacher.encoder.weights.words.dtype == torch.bfloat16
    made = calibrate(teacher, TEXTS, PLAN)
    for tensor in (made.alpha, made.beta, made.mix, made.key_shift):
        assert (tensor.dtype, tensor.device.type) == (torch.float32, "cpu")
    assert len(made.sha256) == 64


def test_compared_text_was_not_calibrated_on(write_checkpoint: WriteCheckpoint) -> None:
    teacher = load_model(str(write_checkpoint("bert")), config=CPU)
    text = " ".join(built_in_texts()[:4])
    num_tokens = len(teacher.tokenizer.encode_batch([text])[0].content)
    plan = replace(PLAN, num_samples=num_tokens // (2 * 62))  # of all tokens, half
    ids, bounds = sample_windows(teacher, [text], plan)
    used = [ids[start:end].tolist() for start, end in pairwise(bounds)]
    others = [window.tolist() for window in other_windows(teacher, [text], plan)]
    assert len(others) == len(used)
    assert {len(window) for window in others} == {64}
    assert not any(window in used for window in others)


@pytest.mark.parametrize("block_size", [64, 256])
def test_long_blocks_are_compared_on_longer_text(
    write_checkpoint: WriteCheckpoint, tmp_path: Path, block_size: int
) -> None:
    plan = replace(PLAN, block_size=block_size, num_samples=16)
    folder = str(write_checkpoint("bert"))
    made = adapt_model(folder, tmp_path / "made", TEXTS, plan, config=CPU)
    assert made.tokens == 2 * block_size
    assert made.least_cosine <= made.mean_cosine < 0.9999
    too_long = replace(plan, block_size=2**16)
    with pytest.raises(InvalidInput, match="needs a text longer than a block of 65536 tokens"):
        adapt_model(folder, tmp_path / "none", TEXTS, too_long, config=CPU)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_vectors_equal_the_models(write_checkpoint: WriteCheckpoint, pooling: Pooling) -> None:
    folder = str(write_checkpoint("bert", pooling=pooling))
    model = load_model(folder, config=CPU)
    texts = ["the quick brown fox", "attention over long documents", "seven wizards box"]
    with Engine.load(folder, config=CPU) as engine:
        served = engine.embed(texts)
    ids = ids_of(texts, model.tokenizer)
    whole = read_whole(model, ids, [[(0, len(text))] for text in ids])
    for found in (vectors_of(model, ids), window_means(model, ids, 512), whole.whole, whole.late):
        np.testing.assert_allclose(found, served, atol=1e-5)
    states, spans = torch.randn(9, 4), [PooledSpan(0, 3), PooledSpan(2, 9), PooledSpan(0, 9, 0.5)]
    expected = torch.nn.functional.normalize(pool(states, spans, pooling), dim=-1)
    torch.testing.assert_close(unit_vectors(states, spans, pooling), expected)


def test_a_model_that_pools_by_its_first_token_is_calibrated_by_it(
    write_checkpoint: WriteCheckpoint, tmp_path: Path
) -> None:
    folder = str(write_checkpoint("bert", pooling="cls"))
    made = adapt_model(folder, tmp_path / "made", TEXTS, PLAN, config=CPU)
    student, teacher = (load_model(str(at), config=CPU) for at in (made.folder, folder))
    others = other_windows(teacher, TEXTS, PLAN)
    cosines = (vectors_of(student, others) * vectors_of(teacher, others)).sum(1)
    assert made.mean_cosine == pytest.approx(float(cosines.mean()), abs=1e-5)


def test_a_model_without_vectors_is_refused(
    write_checkpoint: WriteCheckpoint, tmp_path: Path
) -> None:
    folder = write_checkpoint("bert")
    (folder / "modules.json").write_text(
        '[{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}]'
    )
    with pytest.raises(InvalidInput, match="does not pool") as caught:
        adapt_model(str(folder), tmp_path / "made", TEXTS, PLAN, config=CPU)
    assert caught.value.code == "no_pooling"


def test_a_failure_leaves_no_folder_that_could_be_served(
    write_checkpoint: WriteCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, out = str(write_checkpoint("bert")), tmp_path / "out"

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(convert, "write_calibration", full)
        with pytest.raises(OSError, match="No space"):
            adapt_model(folder, out, TEXTS, PLAN, config=CPU)
    assert not out.exists()
    copy_model(Path(folder), out / ".unfinished" / "model")  # as a kill would leave it
    (out / ".unfinished" / MARK).touch()
    with pytest.raises(CheckpointError):
        load_model(str(out), config=CPU)
    adapt_model(folder, out, TEXTS, PLAN, config=CPU)
    assert load_model(str(out), config=CPU).info.attention == ("lln_diag", "lln_diag")
    assert {entry.name for entry in out.iterdir()}.isdisjoint({".unfinished", MARK})


def test_an_unusable_folder_is_rejected_before_the_model_is_read(tmp_path: Path) -> None:
    (tmp_path / "a file").touch()
    with pytest.raises(NotADirectoryError):
        adapt_model("no such model", tmp_path / "a file", TEXTS, PLAN, config=CPU)


def test_linked_folders_are_copied_but_not_the_old_models_records(
    write_checkpoint: WriteCheckpoint, tmp_path: Path
) -> None:
    folder = write_checkpoint("bert", pooling="cls")
    (folder / "1_Pooling").rename(tmp_path / "elsewhere")
    (folder / "1_Pooling").symlink_to(tmp_path / "elsewhere")
    (folder / "back").symlink_to(folder)
    for name in ("data.json", FILE_NAME, "pytorch_model.bin"):
        (folder / name).write_text("{}")
    copy_model(folder, tmp_path / "copy")
    assert load_model(str(tmp_path / "copy"), config=CPU).info.pooling == "cls"
    copied = {entry.name for entry in (tmp_path / "copy").iterdir()}
    assert copied.isdisjoint({"back", "data.json", FILE_NAME, "pytorch_model.bin"})


@pytest.mark.parametrize("content", [b"", b" \n", b"\x93\xfe\x00\x81" * 9])
def test_files_without_text_to_calibrate_on(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    for path in (tmp_path, tmp_path / "a.txt"):
        with pytest.raises(InvalidInput, match=r"holds no text|a\.txt is not UTF-8 text"):
            read_texts([path])


def test_an_empty_text_beside_others(tmp_path: Path) -> None:
    for name, text in (("empty.txt", ""), ("good.txt", "words")):
        (tmp_path / name).write_text(text)
    empty, good = tmp_path / "empty.txt", tmp_path / "good.txt"
    assert read_texts([empty, good]) == ["words"]
    with pytest.raises(InvalidInput, match=r"empty.txt and .*empty.txt hold no text"):
        read_texts([empty, empty])


def test_no_text_at_all(write_checkpoint: WriteCheckpoint, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="tokens of text, got 0"):
        adapt_model(str(write_checkpoint("bert")), tmp_path / "out", [], PLAN, config=CPU)
