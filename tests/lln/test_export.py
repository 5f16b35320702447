"""`lln export` and `import lln`: the engine's vectors in sentence-transformers and transformers."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoConfig, AutoModel, AutoTokenizer, PreTrainedModel

import lln
from engine import Engine, EngineConfig
from engine.checkpoint.calibration import FILE_NAME, read_calibration, write_calibration
from engine.errors import CheckpointError, InvalidInput, TextTooLong
from engine.training.calibrate import CalibrationPlan
from engine.training.convert import adapt_model, built_in_texts
from engine.training.export import export_model
from service.cli.__main__ import main
from tests.forked import printed_by_fork

if TYPE_CHECKING:
    from tests.conftest import WriteCheckpoint

CPU = EngineConfig(device="cpu")
PLAN = CalibrationPlan(block_size=16, sample_tokens=48, num_samples=4)
LONG = "the quick brown fox jumps over the lazy dog " * 40
TEXTS = ["seven wizards", " ", LONG, "Numbers 0 1 2, marks", LONG[:300]]


@pytest.fixture
def adapted(write_checkpoint: WriteCheckpoint, tmp_path: Path) -> Path:
    return adapt(write_checkpoint(), tmp_path / "adapted")


def adapt(folder: Path, out: Path, plan: CalibrationPlan = PLAN) -> Path:
    return adapt_model(str(folder), out, built_in_texts()[:8], plan, config=CPU).folder


@pytest.fixture
def exported(adapted: Path, tmp_path: Path) -> Path:
    return export_model(str(adapted), tmp_path / "exported", config=CPU)


def engine_vectors(folder: Path, texts: list[str] = TEXTS, **options: Any) -> np.ndarray:
    with Engine.load(str(folder), config=CPU) as engine:
        return engine.embed(texts, **options)


def load(folder: Path) -> SentenceTransformer:
    return SentenceTransformer(str(folder), device="cpu")


@pytest.mark.parametrize(
    ("family", "pooling"),
    [
        ("bert", "mean"),
        ("roberta", "cls"),
        ("modernbert", "max"),
    ],
)
def test_sentence_transformers_gives_the_engines_vectors(
    write_checkpoint: WriteCheckpoint, tmp_path: Path, family: str, pooling: str
) -> None:
    slope = 0.5 if pooling == "mean" else 0.0
    plan = replace(PLAN, pooling_slope=slope)
    adapted = adapt(write_checkpoint(family, pooling=pooling), tmp_path / "adapted", plan)
    exported = export_model(str(adapted), tmp_path / "exported", config=CPU)
    found = load(exported).encode(TEXTS)
    assert np.abs(found - engine_vectors(adapted)).max() <= 1e-6
    softmax = SentenceTransformer(str(adapted), device="cpu")
    softmax.max_seq_length = 500
    assert np.abs(found[2] - softmax.encode(LONG)).max() > 1e-4  # it does attend by LLN+Diag


def test_the_engine_loads_the_folder_too(adapted: Path, exported: Path) -> None:
    assert np.array_equal(engine_vectors(exported), engine_vectors(adapted))


def test_a_model_that_does_not_normalise(write_checkpoint: WriteCheckpoint, tmp_path: Path) -> None:
    adapted = adapt(write_checkpoint(normalize=False), tmp_path / "adapted")
    found = load(export_model(str(adapted), tmp_path / "exported", config=CPU)).encode(TEXTS)
    unit = found / np.linalg.norm(found, axis=1, keepdims=True)
    assert np.abs(unit - engine_vectors(adapted)).max() <= 1e-6
    assert np.abs(np.linalg.norm(found, axis=1) - 1).max() > 0.01


def test_prompts_are_kept(adapted: Path, tmp_path: Path) -> None:
    prompts = {"prompts": {"query": "seven "}, "default_prompt_name": "query"}
    (adapted / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    model = load(export_model(str(adapted), tmp_path / "exported", config=CPU))
    assert model.prompts["query"] == "seven "
    assert np.abs(model.encode(TEXTS) - engine_vectors(adapted)).max() <= 1e-6


def test_saved_and_copied_models_give_the_same_vectors(exported: Path, tmp_path: Path) -> None:
    model = load(exported)
    expected = model.encode(TEXTS)
    model.save_pretrained(str(tmp_path / "saved"))
    assert np.array_equal(load(tmp_path / "saved").encode(TEXTS), expected)
    assert np.abs(engine_vectors(tmp_path / "saved") - expected).max() <= 1e-6
    assert np.array_equal(pickle.loads(pickle.dumps(model)).encode(TEXTS), expected)


def test_a_text_over_the_limit_is_refused(exported: Path) -> None:
    model = load(exported)
    short = replace(CPU, max_text_tokens=50)
    encoder = model.transformers_model
    assert isinstance(encoder, lln.LLNModel)
    encoder._load(short)
    with pytest.raises(TextTooLong, match="limit is 50"):
        model.encode(LONG)


def test_token_states(exported: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(exported)
    model = AutoModel.from_pretrained(exported)
    right = tokenizer(TEXTS[:4], padding=True, return_tensors="pt")
    left = tokenizer(TEXTS[:4], padding=True, padding_side="left", return_tensors="pt")
    assert right["input_ids"].shape[1] > 300  # nothing was truncated
    found, mirrored = model(**right), model(**left)
    lengths = right["attention_mask"].sum(1).tolist()
    for row, length in enumerate(lengths):
        states = found.last_hidden_state[row]
        assert torch.equal(states[:length], mirrored.last_hidden_state[row, -length:])
        assert not states[length:].any()
    assert torch.equal(found.pooler_output, mirrored.pooler_output)


def test_a_precision_that_the_device_lacks_leaves_the_model_as_it_was(exported: Path) -> None:
    model = load(exported)
    with pytest.raises(InvalidInput, match="float16"):
        model.half()
    assert np.abs(model.encode(TEXTS) - engine_vectors(exported)).max() <= 1e-6


def test_what_cannot_be_exported(
    write_checkpoint: WriteCheckpoint, exported: Path, tmp_path: Path
) -> None:
    softmax = str(write_checkpoint())
    with pytest.raises(InvalidInput, match="has softmax attention"):
        export_model(softmax, tmp_path / "new", config=CPU)
    with pytest.raises(InvalidInput, match="is not empty"):
        export_model(str(exported), exported, config=CPU)
    (exported / "config.json").write_text('{"model_type": "lln", "pooling": "none"}')
    with pytest.raises(CheckpointError, match='expected "encoder"'):
        Engine.load(str(exported), config=CPU)


def test_a_model_that_is_no_folder_is_refused() -> None:
    with pytest.raises(OSError, match="is not a folder"):
        lln.LLNModel.from_pretrained("acme/remote")


@pytest.mark.long
def test_without_the_import_the_folder_is_refused(exported: Path) -> None:
    told = printed_by_fork(
        "import sys, transformers\n"
        "assert 'lln' not in sys.modules\n"
        "try:\n"
        f"    transformers.AutoConfig.from_pretrained({str(exported)!r})\n"
        "except ValueError as refusal:\n"
        "    print(refusal)\n"
    )
    assert "model type `lln`" in told


def test_the_command(adapted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "exported"
    assert main(["export", str(adapted), "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"folder": str(out)}
    assert AutoConfig.from_pretrained(out).pooling == "mean"
    assert main(["export", str(adapted), "--out", str(out)]) == 1
    assert "is not empty" in capsys.readouterr().err


# The attention by itself


def stock_model(folder: Path) -> PreTrainedModel:
    model = AutoModel.from_pretrained(folder, attn_implementation="lln_diag")
    assert isinstance(model, PreTrainedModel)
    return model


@pytest.mark.parametrize("family", ["bert", "distilbert", "modernbert"])
def test_stock_models_attend_by_lln_diag(
    write_checkpoint: WriteCheckpoint, tmp_path: Path, family: str
) -> None:
    adapted = adapt(write_checkpoint(family), tmp_path / "adapted")
    model, tokenizer = stock_model(adapted), AutoTokenizer.from_pretrained(adapted)
    lln.use_calibration(model, adapted)
    batch = tokenizer(["seven wizards", LONG[:900]], padding=True, return_tensors="pt")
    with torch.inference_mode():
        states = model(**batch).last_hidden_state
    with Engine.load(str(adapted), config=CPU) as engine:
        for row, kept in enumerate(batch["attention_mask"].bool()):
            ids = batch["input_ids"][row, kept]
            expected = engine.model.encoder(ids, [0, len(ids)])
            assert states[row, kept].numpy() == pytest.approx(expected.numpy(), abs=2e-5)


def test_an_attention_without_a_calibration_says_what_to_do(adapted: Path) -> None:
    with pytest.raises(InvalidInput, match=r"lln\.use_calibration"):
        stock_model(adapted)(input_ids=torch.tensor([[1, 2, 3]]))


def test_calibrations_that_do_not_fit(
    write_checkpoint: WriteCheckpoint, adapted: Path, tmp_path: Path
) -> None:
    deeper = stock_model(write_checkpoint(num_hidden_layers=3))
    with pytest.raises(CheckpointError, match="has 2 layers, the model 3"):
        lln.use_calibration(deeper, adapted)
    with Engine.load(str(adapted), config=CPU) as engine:
        sha256 = engine.model.checkpoint.sha256
    calibration = read_calibration(adapted / FILE_NAME, sha256)
    trained = replace(calibration, adapted={"embedding_norm.bias": torch.zeros(64)})
    write_calibration(adapted / FILE_NAME, trained)
    with pytest.raises(CheckpointError, match="trained with its encoder"):
        lln.use_calibration(stock_model(adapted), adapted)


def test_training_mode_is_refused(adapted: Path) -> None:
    model = stock_model(adapted).train()
    lln.use_calibration(model, adapted)
    with pytest.raises(InvalidInput, match="no dropout"):
        model(input_ids=torch.tensor([[1, 2, 3]]))
