"""The title that a document begins with, in the vectors of its chunks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest

from engine.async_engine import AsyncEngine
from engine.engine import Engine
from engine.execution.documents import DocumentReader, prepare_document
from engine.model.embedding_model import EmbeddingModel
from engine.text.chunking import OPENING_TOKENS, SHARES
from engine.types import ChunkPlan, EmbedOptions, Span, SpanPlan, Vector

TITLE = "Ships of the north"
PLAN = ChunkPlan(tokens=64)
DEFAULTS = EmbedOptions()


@pytest.fixture(scope="module")
def body(long_text: str) -> str:
    return "It tells of these:\n\n" + long_text[200:4_000]


@pytest.fixture(scope="module")
def engine(shallow_model: EmbeddingModel) -> Engine:
    return Engine(shallow_model)


def vectors(engine: Engine, text: str, plan: ChunkPlan | SpanPlan = PLAN) -> Vector:
    return np.stack([chunk.vector for chunk in engine.embed_document(text, chunks=plan).chunks])


def opening_text(model: EmbeddingModel, text: str) -> tuple[str, float]:
    """The characters whose vector is added to each chunk's, and how much of it."""
    document = prepare_document(text, model, DEFAULTS, PLAN)
    [encoded] = model.tokenizer.encode_batch([text], with_offsets=True)
    first, last = (encoded.offsets[at] for at in _content(document.spans[1]))
    return text[first[0] : last[1]], document.opening


def _content(span: Span) -> tuple[int, int]:
    return max(span.start, 1), span.end - 1


def test_it_takes_the_place_of_the_first_words(engine: Engine, body: str) -> None:
    shares = SHARES["balanced"]
    assert opening_text(engine.model, f"{TITLE}\n\n{body}") == (TITLE, shares.title)
    words, share = opening_text(engine.model, body)
    assert body.startswith(words)
    assert len(words) > len(TITLE)
    assert share == shares.opening


def test_its_vector_is_mixed_as_a_chunks_is(engine: Engine, body: str) -> None:
    text = f"# {TITLE}\n\n{body}"
    title = SpanPlan(spans=(Span(2, 2 + len(TITLE)),), alone=0.5, opening=0)
    [of_title] = vectors(engine, text, title)
    plain = vectors(engine, text, ChunkPlan(tokens=64, opening=0))
    wanted = plain + SHARES["balanced"].title * of_title
    wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    np.testing.assert_allclose(vectors(engine, text), wanted, atol=1e-6)


def test_a_long_title_counts_no_longer_than_an_opening(engine: Engine, body: str) -> None:
    title = "# " + "ship " * (2 * OPENING_TOKENS)
    document = prepare_document(f"{title}\n\n{body}", engine.model, DEFAULTS, PLAN)
    start, end = document.spans[1]
    assert end - start == OPENING_TOKENS


def test_a_told_title_is_not_looked_for(engine: Engine, body: str) -> None:
    document = prepare_document(f"{TITLE}\n\n{body}", engine.model, DEFAULTS, PLAN, title="Boats")
    assert document.title is not None
    assert document.spans[1] == document.chunks[0].tokens
    assert document.opening == SHARES["balanced"].title


def test_it_is_found_in_pieces(engine: Engine, body: str) -> None:
    text = f"{TITLE}\n\n{body}"
    whole = prepare_document(text, engine.model, DEFAULTS, PLAN)
    reader = DocumentReader(engine.model, DEFAULTS, PLAN, in_pieces=True)
    for start in range(0, len(text), 7):
        reader.feed(text[start : start + 7])
    read = reader.finish()
    assert (read.spans, read.opening) == (whole.spans, whole.opening)


def test_a_title_that_truncation_dropped_is_not_used(engine: Engine, body: str) -> None:
    options = EmbedOptions(truncate="start", max_tokens=200)
    document = prepare_document(f"{TITLE}\n\n{body}", engine.model, options, PLAN)
    assert document.dropped is not None
    assert document.spans[1] == Span(0, OPENING_TOKENS)
    assert document.opening == SHARES["balanced"].opening


@pytest.mark.parametrize(
    "chunks", [(f"{TITLE}\n\n", "It tells of them."), (TITLE, "\n\nOf ships.")]
)
def test_it_is_found_in_given_chunks(
    shallow_model: EmbeddingModel, engine: Engine, chunks: Sequence[str]
) -> None:
    async def embed() -> Vector:
        async with AsyncEngine([shallow_model]) as asynchronous:
            [document] = await asynchronous.embed_given_chunks([chunks])
            return np.stack([chunk.vector for chunk in document.chunks])

    text, cut = "".join(chunks), len(chunks[0])
    title = Span(0, len(TITLE))
    plan = SpanPlan(spans=(title, Span(cut, len(text))), opening=0)
    plain = vectors(engine, text, plan)
    wanted = plain + SHARES["balanced"].title * plain[0]
    wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    np.testing.assert_allclose(asyncio.run(embed()), wanted, atol=1e-5)
