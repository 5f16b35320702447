"""Late chunks that take on their document's opening."""

from __future__ import annotations

import numpy as np
import pytest

from engine.model.embedding_model import EmbeddingModel
from engine.plain import Engine
from engine.types import Chunk, ChunkPlan, EmbedOptions


def test_a_documents_opening_is_added_to_its_chunks(
    default_model: EmbeddingModel, long_text: str
) -> None:
    """A document no longer than its opening is its own opening."""
    with Engine(default_model) as engine:
        plans = ChunkPlan(tokens=40), ChunkPlan(tokens=40, opening=0.5)
        plain, moved = (engine.embed_document(long_text[:600], chunks=plan) for plan in plans)
    np.testing.assert_array_equal(plain.vector, moved.vector)
    assert len(plain.chunks) > 2
    for chunk, other in zip(plain.chunks, moved.chunks, strict=True):
        wanted = chunk.vector + 0.5 * plain.vector
        np.testing.assert_allclose(other.vector, wanted / np.linalg.norm(wanted), atol=1e-6)


def test_it_is_added_in_proportion_to_a_chunks_own_length(
    default_model: EmbeddingModel, long_text: str
) -> None:
    with Engine(default_model) as engine:

        def chunks(opening: float) -> tuple[Chunk, ...]:
            plan, options = ChunkPlan(tokens=300, opening=opening), EmbedOptions(normalize=False)
            return engine.embed_document(long_text[:4_000], chunks=plan, options=options).chunks

        plain, moved = chunks(0.0), chunks(1.0)
    for chunk, other in zip(plain, moved, strict=True):
        change = np.linalg.norm(other.vector - chunk.vector) / np.linalg.norm(chunk.vector)
        assert change == pytest.approx(1.0, abs=1e-4)
