"""Late chunks that take on their document's opening, or what they say when they are read alone."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, starmap

import numpy as np
import pytest

from engine.engine import Engine
from engine.execution.results import StandaloneVectors
from engine.model.embedding_model import EmbeddingModel
from engine.scheduling.request import TimedResult
from engine.text.chunking import OPENING_TOKENS
from engine.text.titles import title_span
from engine.types import Chunk, ChunkPlan, EmbedOptions, Span, SpanPlan


def untitled(text: str) -> str:
    """The text without the title that it begins with, whose place its first words then take."""
    title = title_span(text)
    assert title is not None
    rest = text[title.end :].lstrip("*\n")
    assert title_span(rest) is None
    return rest


def test_a_documents_opening_is_added_to_its_chunks(
    shallow_model: EmbeddingModel, long_text: str
) -> None:
    """A document no longer than its opening is its own opening."""
    with Engine(shallow_model) as engine:
        plans = (ChunkPlan(tokens=6, context="late", opening=opening) for opening in (None, 0.5))
        plain, moved = (
            engine.embed_document(untitled(long_text)[:100], chunks=plan) for plan in plans
        )
    assert plain.tokens <= OPENING_TOKENS
    np.testing.assert_array_equal(plain.vector, moved.vector)
    assert len(plain.chunks) > 2
    for chunk, other in zip(plain.chunks, moved.chunks, strict=True):
        wanted = chunk.vector + 0.5 * plain.vector
        np.testing.assert_allclose(other.vector, wanted / np.linalg.norm(wanted), atol=1e-6)


def test_it_is_added_in_proportion_to_a_chunks_own_length(
    shallow_model: EmbeddingModel, long_text: str
) -> None:
    with Engine(shallow_model) as engine:

        def chunks(opening: float) -> tuple[Chunk, ...]:
            plan, options = (
                ChunkPlan(tokens=300, context="late", opening=opening),
                EmbedOptions(normalize=False),
            )
            return engine.embed_document(long_text[:4_000], chunks=plan, options=options).chunks

        plain, moved = chunks(0.0), chunks(1.0)
    for chunk, other in zip(plain, moved, strict=True):
        change = np.linalg.norm(other.vector - chunk.vector) / np.linalg.norm(chunk.vector)
        assert change == pytest.approx(1.0, abs=1e-4)


def test_read_alone_a_chunk_is_a_text_of_its_own(
    shallow_model: EmbeddingModel, long_text: str
) -> None:
    with Engine(shallow_model) as engine:
        text = long_text[:6_000]
        late, half, alone = (
            engine.embed_document(text, chunks=ChunkPlan(tokens=200, context="late", alone=share))
            for share in (0.0, 0.5, 1.0)
        )
        [ids] = shallow_model.tokenizer.encode_batch([text])
        own = engine.embed([ids.ids[slice(*chunk.tokens)].tolist() for chunk in late.chunks])
    assert len(own) > 5
    np.testing.assert_array_equal(late.vector, half.vector)
    for one, middle, other, wanted in zip(late.chunks, half.chunks, alone.chunks, own, strict=True):
        np.testing.assert_allclose(other.vector, wanted, atol=1e-6)
        between = one.vector + wanted
        np.testing.assert_allclose(middle.vector, between / np.linalg.norm(between), atol=1e-6)


def test_the_time_of_passages_that_ran_together_counts_once() -> None:
    vector = np.ones((1, 3), np.float32)
    delivered = [
        TimedResult(vector, 0.0, *unit) for unit in [(2.0, 10.0), (2.0, 10.0), (0.5, 12.0)]
    ]
    found = StandaloneVectors.of(delivered)
    assert (len(found.vectors), found.compute_s) == (3, 2.5)


def test_the_opening_is_read_alone_by_the_same_share(
    shallow_model: EmbeddingModel, long_text: str
) -> None:
    with Engine(shallow_model) as engine:
        plan = ChunkPlan(tokens=200, alone=1.0, opening=1.0)
        text = untitled(long_text)[:4_000]
        document = engine.embed_document(text, chunks=plan)
        [ids] = shallow_model.tokenizer.encode_batch([text])
        spans = [(1, OPENING_TOKENS), *(chunk.tokens for chunk in document.chunks)]
        opening, *own = engine.embed([ids.ids[slice(*span)].tolist() for span in spans])
    for chunk, wanted in zip(document.chunks, own, strict=True):
        between = opening + wanted
        np.testing.assert_allclose(chunk.vector, between / np.linalg.norm(between), atol=1e-6)


def test_a_model_with_prompts_reads_passages_alone_behind_its_prompt(
    shallow_model: EmbeddingModel, long_text: str
) -> None:
    checkpoint = replace(shallow_model.checkpoint, prompts={"passage": "passage: "})
    model = replace(shallow_model, parts=replace(shallow_model.parts, checkpoint=checkpoint))
    options = EmbedOptions(prompt_name="passage")
    with Engine(model) as engine:
        text = long_text[:300]
        cuts = [0, text.index(" ", 100), text.index(" ", 200), len(text)]
        plan = SpanPlan(spans=tuple(starmap(Span, pairwise(cuts))), context="alone")
        document = engine.embed_document(text, chunks=plan, options=options)
        own = engine.embed([text[slice(*span)] for span in plan.spans], options=options)
    found = np.stack([chunk.vector for chunk in document.chunks])
    np.testing.assert_allclose(found, own, atol=1e-6)
