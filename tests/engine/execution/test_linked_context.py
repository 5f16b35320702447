"""Linked chunks: what they are made of, what they cost, and where they are refused."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from engine.async_engine import AsyncEngine
from engine.config import EngineConfig
from engine.engine import Engine
from engine.errors import InvalidInput
from engine.execution.results import add_opening
from engine.model.embedding_model import EmbeddingModel
from engine.training.encode import read_linked
from engine.types import (
    ChunkPlan,
    ChunksReady,
    DocumentChunks,
    DocumentEmbedding,
    DocumentEvent,
    EmbedOptions,
    Progress,
    Span,
    SpanPlan,
    Vector,
)
from tests.engine.serving import serve
from tests.engine.small_models import calibrated

if TYPE_CHECKING:
    from tests.conftest import WriteCheckpoint

PLAN = ChunkPlan(tokens=48, context="linked")


@pytest.fixture(scope="module")
def text(long_text: str) -> str:
    return long_text[:1_500]


@pytest.fixture(scope="module")
def engine(shallow_model: EmbeddingModel) -> Engine:
    return Engine(shallow_model)


@pytest.fixture(scope="module")
def small(write_checkpoint: WriteCheckpoint) -> EmbeddingModel:
    return calibrated(write_checkpoint("bert"), block_size=16, num_sinks=(1, 1))


def vectors(found: DocumentEmbedding | DocumentChunks) -> Vector:
    return np.stack([chunk.vector for chunk in found.chunks])


def linked(engine: Engine, text: str, plan: ChunkPlan = PLAN, **fields: Any) -> Vector:
    return vectors(engine.embed_document(text, chunks=replace(plan, **fields)))


def test_a_chunk_is_its_linked_passage_and_the_title(engine: Engine, text: str) -> None:
    title = "Statements of the language"
    found = engine.embed_document(text, chunks=PLAN, title=title)
    [encoded] = engine.model.tokenizer.encode_batch([text])
    read = read_linked(engine.model, [encoded.ids], [[chunk.tokens for chunk in found.chunks]])
    wanted = add_opening(read, engine.embed([title])[0], 0.45)
    wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    np.testing.assert_allclose(vectors(found), wanted, atol=2e-6)


def test_it_lies_between_alone_and_its_document(engine: Engine, text: str) -> None:
    """By LLN every chunk is drawn towards the others: its document's mean."""
    alone, with_lln = linked(engine, text, context="alone"), linked(engine, text, opening=0)
    assert not np.allclose(alone, with_lln, atol=1e-3)
    mean = alone.mean(0)
    assert (with_lln @ mean).mean() > (alone @ mean).mean()
    assert (alone * with_lln).sum(1).min() > 0.7


def test_each_chunk_depends_on_the_whole_text(engine: Engine, text: str) -> None:
    first, of_half = linked(engine, text)[0], linked(engine, text[: len(text) // 2])[0]
    assert float(first @ of_half) < 0.99999
    one, other = (
        linked(engine, part, context="alone")[0] for part in (text, text[: len(text) // 2])
    )
    np.testing.assert_allclose(one, other, atol=2e-6)


def test_it_costs_one_reading(shallow_model: EmbeddingModel, text: str) -> None:
    async def read(engine: AsyncEngine) -> tuple[DocumentEmbedding, DocumentChunks]:
        whole = await engine.embed_document(text, chunks=PLAN)
        return whole, await engine.embed_chunks(text, chunks=PLAN)

    whole, chunks = serve([shallow_model], read)
    np.testing.assert_array_equal(vectors(whole), vectors(chunks))
    with Engine(shallow_model) as engine:
        np.testing.assert_array_equal(
            vectors(engine.embed_chunks(text, chunks=PLAN)), vectors(chunks)
        )
        late = replace(PLAN, context="late")
        np.testing.assert_array_equal(
            vectors(engine.embed_chunks(text, chunks=late)), linked(engine, text, context="late")
        )
    cost = chunks.accounting
    of_title = 7  # '"assert" statement' and its special tokens
    assert cost.tokens_alone == cost.tokens - 2 + 2 * len(chunks.chunks) + of_title
    assert cost.compute_s < whole.accounting.compute_s


def test_a_stream_of_chunks_tells_how_far_it_is(
    shallow_model: EmbeddingModel, long_text: str
) -> None:
    events: list[DocumentEvent] = []

    async def read(engine: AsyncEngine) -> tuple[DocumentEmbedding, DocumentChunks]:
        whole = await engine.embed_document(long_text[:12_000], chunks=PLAN)
        document = engine.open_chunks(chunks=PLAN, on_event=events.append)
        await document.feed(long_text[:12_000])
        return whole, await document.finish()

    whole, found = serve([shallow_model], read)
    np.testing.assert_array_equal(vectors(found), vectors(whole))
    *progress, ready = events
    assert ready == ChunksReady(chunks=found.chunks)
    done = [event.tokens_done for event in progress if isinstance(event, Progress)]
    assert len(done) == len(progress) > 3
    assert done == sorted(done)
    assert done[-1] == found.accounting.tokens_saved == found.tokens


def test_lists_of_documents_are_not_read_whole_either(
    shallow_model: EmbeddingModel, text: str
) -> None:
    halves = [text[:700], text[700:]]

    async def read(engine: AsyncEngine) -> list[DocumentChunks]:
        given = await engine.embed_given_chunks([halves, halves], context="linked")
        cut = await engine.embed_chunks_of([text], chunks=PLAN)
        balanced = await engine.embed_given_chunks([halves])
        return [*given, *cut, *balanced, await engine.embed_document(text, chunks=PLAN)]

    *saved, cut, balanced, whole = serve([shallow_model], read)
    np.testing.assert_array_equal(vectors(cut), vectors(whole))
    assert all(one.accounting.tokens_saved == one.tokens for one in (*saved, cut))
    assert balanced.accounting.tokens_saved == whole.accounting.tokens_saved == 0


def test_the_asynchronous_engine_gives_the_same_bits(
    shallow_model: EmbeddingModel, engine: Engine, text: str
) -> None:
    async def read(served: AsyncEngine) -> list[DocumentEmbedding]:
        texts = (text, "Another text. " * 40, text[:700])
        return list(
            await asyncio.gather(*(served.embed_document(one, chunks=PLAN) for one in texts))
        )

    first, *_ = serve([shallow_model], read)
    np.testing.assert_array_equal(vectors(first), linked(engine, text))


def test_a_model_without_lln_reads_them_alone(shallow_model: EmbeddingModel, text: str) -> None:
    for kind in ("softmax", "block_diagonal"):
        with Engine(shallow_model.with_attention(kind)) as without:
            np.testing.assert_allclose(
                linked(without, text), linked(without, text, context="opening"), atol=2e-6
            )


def test_a_single_chunk_is_alone(engine: Engine) -> None:
    one = "A short text about otters."
    np.testing.assert_allclose(
        linked(engine, one), linked(engine, one, context="opening"), atol=2e-6
    )


def test_spans_in_any_order_are_read_with_the_rest(engine: Engine, text: str) -> None:
    spans = (Span(600, 900), Span(0, 200), Span(100, 300))
    found = [
        engine.embed_document(text, chunks=SpanPlan(spans=order, context="linked")).chunks
        for order in (spans, spans[::-1])
    ]
    for one, other in zip(found[0], found[1][::-1], strict=True):
        np.testing.assert_allclose(one.vector, other.vector, atol=2e-6)
    cut = engine.embed_document(text[:900], chunks=SpanPlan(spans=spans, context="linked")).chunks
    assert float(cut[0].vector @ found[0][0].vector) < 0.99999


def test_half_of_it_may_be_late(engine: Engine, text: str) -> None:
    late, half = linked(engine, text, context="late"), linked(engine, text, alone=0.5, opening=0)
    whole = linked(engine, text, opening=0)
    assert ((half * late).sum(1) > (whole * late).sum(1)).all()
    assert ((half * whole).sum(1) > (whole * late).sum(1)).all()


def test_each_is_read_behind_the_prompt(shallow_model: EmbeddingModel, text: str) -> None:
    checkpoint = replace(shallow_model.checkpoint, prompts={"passage": "passage: "})
    model = replace(shallow_model, parts=replace(shallow_model.parts, checkpoint=checkpoint))
    plan, options = replace(PLAN, opening=0), EmbedOptions(prompt_name="passage")
    with Engine(model.with_attention("block_diagonal")) as without:
        found = without.embed_document(text, chunks=plan, options=options)
        parts = [text[slice(*chunk.characters)] for chunk in found.chunks]
        np.testing.assert_allclose(vectors(found), without.embed(parts, options=options), atol=2e-6)


def test_a_stream_has_progress_while_passages_are_read(small: EmbeddingModel, text: str) -> None:
    events: list[DocumentEvent] = []

    async def read(engine: AsyncEngine) -> DocumentEmbedding:
        plan = replace(PLAN, tokens=12)
        return await engine.embed_document(text * 8, chunks=plan, on_event=events.append)

    found = serve([small], read, config=EngineConfig(min_sweep_tokens=64))
    done = [event.tokens_done for event in events if isinstance(event, Progress)]
    assert done == sorted(done)  # though the short title may be answered after some tiles
    assert done[-1] == found.tokens
    assert sum(one < found.tokens // 2 for one in done) > 3


def test_chunks_with_a_record_cannot_be_linked(engine: Engine, text: str) -> None:
    with pytest.raises(InvalidInput, match="cannot be linked") as caught:
        engine.embed_document(text, chunks=PLAN, record=True)
    error = caught.value
    assert (error.code, error.param) == ("invalid_chunking", "chunking.context")
    assert error.limit == "balanced, late, alone, title, opening, one_pass"


def test_chunks_that_overlap_too_far_are_refused(small: EmbeddingModel, text: str) -> None:
    with Engine(replace(small, info=replace(small.info, max_tokens=2_000))) as engine:
        overlapping = replace(PLAN, tokens=40, overlap=39)
        with pytest.raises(InvalidInput, match="overlap so far") as caught:
            engine.embed_document(text, chunks=overlapping)
        error = caught.value
        assert (error.code, error.param, error.limit) == ("too_many_tokens", "chunking", 8_000)
        assert isinstance(error.actual, int)
        assert error.actual > 8_000
        assert len(linked(engine, text, replace(PLAN, tokens=40, overlap=20))) > 10
