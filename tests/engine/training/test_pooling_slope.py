"""The pooling slope: later tokens weigh more in the vector of a whole text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from engine.config import EngineConfig
from engine.errors import InvalidInput
from engine.execution.inputs import PreparedText, token_by_token
from engine.execution.model_runner import TiledRun, run_batch
from engine.model.embedding_model import EmbeddingModel, load_model
from engine.model.pooling import PooledSpan, pool
from engine.training.calibrate import CalibrationPlan
from engine.training.convert import adapt_model, with_settings
from engine.training.encode import read_whole, unit, vectors_of
from engine.training.model_folder import read_record, write_record
from engine.training.student import Student, StudentPlan
from engine.types import Ids, Span, Vector
from tests.engine.model.readings import at_once, some_ids
from tests.engine.small_models import calibrated

if TYPE_CHECKING:
    from tests.conftest import WriteCheckpoint

BLOCK, SLOPE, LENGTH = 64, 0.6, 300


@pytest.fixture
def level(write_checkpoint: WriteCheckpoint) -> EmbeddingModel:
    return calibrated(write_checkpoint("bert"), block_size=BLOCK, num_sinks=(1, 1))


@pytest.fixture
def model(level: EmbeddingModel) -> EmbeddingModel:
    assert level.calibration is not None
    return level.with_calibration(replace(level.calibration, pooling_slope=SLOPE))


def text_of(ids: Ids, *spans: tuple[int, int]) -> PreparedText:
    text = PreparedText.whole(ids)
    return replace(text, spans=(*text.spans, *(Span(*span) for span in spans)))


def swept(model: EmbeddingModel, text: PreparedText) -> Vector:
    sweep = TiledRun(model, text)
    while sweep.result is None:
        sweep.step()
    return sweep.result


def weighted_by_hand(states: Vector, slope: float) -> Vector:
    """Weights from 1 - slope at the middle of the first token to 1 + slope at that of the last."""
    places = (np.arange(len(states)) + 0.5) / len(states)
    weights = 1 - slope + 2 * slope * places
    found: Vector = (weights[:, None] * states).sum(0) / weights.sum()
    return found


def test_the_slope_applies_to_whole_texts_only(model: EmbeddingModel) -> None:
    ids = some_ids(LENGTH)
    states = at_once(model.encoder, ids).numpy()
    text = text_of(ids, (0, 100), (50, LENGTH), (0, LENGTH))
    wanted = np.stack(
        [
            weighted_by_hand(states, SLOPE * (1 - BLOCK / LENGTH)),
            states[:100].mean(0),
            states[50:].mean(0),
            weighted_by_hand(states, SLOPE * (1 - BLOCK / LENGTH)),
        ]
    )
    assert np.abs(wanted[0] - states.mean(0)).max() > 0.01
    for found in (run_batch(model, [text])[0], swept(model, text)):
        np.testing.assert_allclose(found, wanted, atol=2e-5)


@pytest.mark.parametrize("length", [1, 2, BLOCK - 1, BLOCK])
def test_a_text_of_one_block_keeps_every_bit(
    length: int, level: EmbeddingModel, model: EmbeddingModel
) -> None:
    texts = [text_of(some_ids(length))]
    np.testing.assert_array_equal(run_batch(model, texts)[0], run_batch(level, texts)[0])


def test_a_batch_changes_no_bit(model: EmbeddingModel) -> None:
    texts = [text_of(some_ids(n)) for n in (300, 5, 64, 65, 301, 2, 300)]
    for together, text in zip(run_batch(model, texts), texts, strict=True):
        np.testing.assert_array_equal(together, run_batch(model, [text])[0])


def test_states_of_tokens_are_left_alone(level: EmbeddingModel, model: EmbeddingModel) -> None:
    text = token_by_token(text_of(some_ids(LENGTH)))
    np.testing.assert_array_equal(run_batch(model, [text])[0], run_batch(level, [text])[0])


@pytest.mark.parametrize("kind", ["softmax", "block_diagonal"])
def test_without_lln_there_is_no_slope(kind: str, model: EmbeddingModel) -> None:
    other = model.with_attention(kind)
    states = at_once(other.encoder, some_ids(LENGTH)).numpy()
    found = run_batch(other, [text_of(some_ids(LENGTH))])[0]
    np.testing.assert_allclose(found[0], states.mean(0), atol=1e-5)


def test_evaluation_pools_as_serving(model: EmbeddingModel) -> None:
    ids = some_ids(LENGTH)
    served = unit(run_batch(model, [text_of(ids)])[0])
    read = read_whole(model, [ids], [[(0, 100)]])
    for found in (vectors_of(model, [some_ids(9), ids])[1:], read.whole):
        np.testing.assert_allclose(found, served, atol=1e-6)


def test_training_pools_as_serving(model: EmbeddingModel) -> None:
    assert model.calibration is not None
    teacher = model.with_attention("softmax")

    def student(*, without_lln: bool) -> Student:
        return Student(teacher, model.calibration, StudentPlan(without_lln=without_lln))  # type: ignore[arg-type]

    lengths: Sequence[int] = (BLOCK, LENGTH)
    learner, control = student(without_lln=False), student(without_lln=True)
    assert [learner.pooling_slope_of(n) for n in lengths] == [
        model.pooling_slope_of(n) for n in lengths
    ]
    assert [learner.calibration().pooling_slope, control.calibration().pooling_slope] == [SLOPE, 0]
    assert control.pooling_slope_of(LENGTH) == 0


def test_a_converted_model_has_the_plans_slope(
    write_checkpoint: WriteCheckpoint, tmp_path: Path
) -> None:
    plan = CalibrationPlan(block_size=16, sample_tokens=64, num_samples=2, pooling_slope=SLOPE)
    texts = ["the quick brown fox jumps over the lazy dog " * 40]
    config = EngineConfig(device="cpu")
    made = adapt_model(str(write_checkpoint("bert")), tmp_path / "made", texts, plan, config=config)
    assert load_model(str(made.folder), config=config).pooling_slope_of(32) == SLOPE / 2
    first_token = str(write_checkpoint("bert", pooling="cls"))
    with pytest.raises(InvalidInput, match="a rise needs a model that pools by the mean") as caught:
        adapt_model(first_token, tmp_path / "none", texts, plan, config=config)
    assert (caught.value.param, caught.value.actual) == ("rise", "cls")
    assert not (tmp_path / "none").exists()


def test_changing_the_slope_changes_nothing_else(
    write_checkpoint: WriteCheckpoint, tmp_path: Path
) -> None:
    folder, config = str(write_checkpoint("bert")), EngineConfig(device="cpu")
    with pytest.raises(InvalidInput, match="never adapted"):
        with_settings(folder, tmp_path / "none", pooling_slope=0.5, config=config)
    plan = CalibrationPlan(block_size=16, sample_tokens=64, num_samples=2)
    texts = ["the quick brown fox jumps over the lazy dog " * 40]
    first = adapt_model(folder, tmp_path / "first", texts, plan, config=config).folder
    record = {"sources": {"some": {"trained_on": "this", "held_out": "that"}}}
    write_record(first, record)
    second = load_model(
        str(with_settings(str(first), tmp_path / "second", pooling_slope=0.5)), config=config
    )
    before = load_model(str(first), config=config)
    assert read_record(second) == record
    assert (before.pooling_slope_of(64), second.pooling_slope_of(64)) == (0, 0.375)
    states = [at_once(one.encoder, some_ids(64)) for one in (before, second)]
    assert torch.equal(*states)


def test_weights_in_states_of_a_lower_precision_are_not_rounded(model: EmbeddingModel) -> None:
    states = torch.randn(LENGTH, 8, generator=torch.Generator().manual_seed(1)).bfloat16()
    found = pool(states, [PooledSpan(0, LENGTH, SLOPE)], "mean")
    wanted = weighted_by_hand(states.double().numpy(), SLOPE)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found[0].numpy(), wanted, atol=1e-6)
