"""A model's own context: what its chunks take from their document where a caller says nothing."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from engine.async_engine import AsyncEngine
from engine.checkpoint.calibration import FILE_NAME, read_calibration, write_calibration
from engine.config import EngineConfig
from engine.engine import Engine
from engine.errors import CheckpointError, InvalidInput
from engine.model.embedding_model import load_model
from engine.training.average import average_models
from engine.training.calibrate import CalibrationPlan
from engine.training.convert import adapt_model, with_settings
from engine.types import ChunkPlan, Context, DocumentChunks, DocumentEmbedding, Vector
from tests.engine.living.texts import TEXT
from tests.engine.small_models import calibrated

if TYPE_CHECKING:
    from tests.conftest import WriteCheckpoint

UNSAID = ChunkPlan(tokens=8)
CPU = EngineConfig(device="cpu")


@pytest.fixture(scope="module")
def engine(write_checkpoint: WriteCheckpoint) -> Engine:
    """Of a model whose own context is one_pass."""
    model = calibrated(write_checkpoint("bert"), block_size=64, num_sinks=(1, 1))
    assert model.calibration is not None
    return Engine(model.with_calibration(replace(model.calibration, chunk_context="one_pass")))


def plan_of(context: Context) -> ChunkPlan:
    return replace(UNSAID, context=context)


def vectors(document: DocumentEmbedding) -> Vector:
    return np.stack([chunk.vector for chunk in document.chunks])


def test_chunks_are_read_in_the_models_own_context(engine: Engine) -> None:
    own, one_pass, balanced = (
        vectors(engine.embed_document(TEXT, chunks=plan))
        for plan in (UNSAID, plan_of("one_pass"), plan_of("balanced"))
    )
    assert np.array_equal(own, one_pass)
    assert not np.allclose(own, balanced, atol=1e-3), "the test can tell contexts apart"
    assert engine.model.info.chunk_context == "one_pass"


def test_a_title_is_used_as_the_models_own_context_says(engine: Engine) -> None:
    own, one_pass = (
        vectors(engine.embed_document(TEXT, chunks=plan, title="the quick fox"))
        for plan in (UNSAID, plan_of("one_pass"))
    )
    assert np.array_equal(own, one_pass)


def test_a_record_keeps_the_context_that_was_used(engine: Engine) -> None:
    first = engine.embed_document(TEXT, chunks=UNSAID, record=True)
    told = engine.embed_document(TEXT, chunks=plan_of("one_pass"), record=True)
    assert first.record == told.record
    longer = TEXT + " the lazy dog"
    for chunks in (None, UNSAID, plan_of("one_pass")):
        updated = engine.update_document(first.record, longer, chunks=chunks)
        assert updated.segments_read < updated.segments
    afresh = engine.update_document(first.record, longer, chunks=plan_of("late"))
    assert afresh.segments_read == afresh.segments


def test_an_unknown_context_is_named_before_its_title_is_looked_at(engine: Engine) -> None:
    wrong = plan_of(cast("Context", "nope"))
    for record in (False, True):
        with pytest.raises(InvalidInput, match=r"context must be one of .*, got 'nope'"):
            engine.embed_document(TEXT, chunks=wrong, title="the fox", record=record)


def test_given_chunks_are_read_in_it_too(engine: Engine) -> None:
    async def both() -> list[DocumentChunks]:
        async with AsyncEngine([engine.model]) as served:
            return [
                (await served.embed_given_chunks([["the quick fox.", " over"]], context=context))[0]
                for context in (None, "one_pass", "balanced")
            ]

    own, one_pass, balanced = (
        np.stack([chunk.vector for chunk in one.chunks]) for one in asyncio.run(both())
    )
    assert np.array_equal(own, one_pass)
    assert not np.array_equal(own, balanced)


def test_it_is_kept_beside_what_decides_vectors(
    write_checkpoint: WriteCheckpoint, tmp_path: Path
) -> None:
    texts = ["the quick brown fox jumps over the lazy dog " * 40]
    plan = CalibrationPlan(block_size=16, sample_tokens=64, num_samples=2)
    made = adapt_model(str(write_checkpoint("bert")), tmp_path / "made", texts, plan, config=CPU)
    before = load_model(str(made.folder), config=CPU)
    own = with_settings(str(made.folder), tmp_path / "own", chunk_context="late", config=CPU)
    after = load_model(str(own), config=CPU)
    assert (before.info.chunk_context, after.info.chunk_context) == ("balanced", "late")
    assert after.info.calibration == before.info.calibration, "the numbers are the same"
    assert after.with_attention("softmax").info.chunk_context == "balanced"
    average = average_models([str(own)] * 2, tmp_path / "mean", config=CPU)
    assert load_model(str(average), config=CPU).info.chunk_context == "late"
    with pytest.raises(InvalidInput, match="chunk_context is balanced in one and late in the oth"):
        average_models([str(made.folder), str(own)], tmp_path / "none", config=CPU)


@pytest.mark.parametrize("written", ["linked", "Late", ""])
def test_another_word_is_no_context(
    write_checkpoint: WriteCheckpoint, tmp_path: Path, written: str
) -> None:
    model = calibrated(write_checkpoint("bert"), block_size=64, num_sinks=(1, 1))
    path = tmp_path / FILE_NAME
    assert model.calibration is not None
    write_calibration(path, model.calibration)
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    save_file(load_file(path), path, metadata={**metadata, "chunk_context": written})
    with pytest.raises(CheckpointError, match=f"chunk_context is {written!r}, not one of balanced"):
        read_calibration(path, model.checkpoint.sha256)
