"""What a chunk's vector takes from its document: by name, by number, and from a title."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from engine.async_engine import AsyncEngine
from engine.config import EngineConfig
from engine.engine import Engine
from engine.errors import DeadlineExceeded, InvalidInput, QueueFull, TextTooLong
from engine.execution.inputs import PreparedText
from engine.model.embedding_model import EmbeddingModel
from engine.scheduling.observer import EngineObserver
from engine.text.chunking import SHARES
from engine.types import (
    ChunkPlan,
    ChunksReady,
    Context,
    DocumentChunks,
    DocumentEmbedding,
    DocumentEvent,
    EmbedOptions,
    Progress,
    SentencePlan,
    Vector,
)
from tests.engine.serving import serve
from tests.engine.small_models import calibrated

if TYPE_CHECKING:
    from tests.conftest import WriteCheckpoint

PLAN = ChunkPlan(tokens=64)
UNLINKED = [name for name, shares in SHARES.items() if not shares.linked]


class TokensRead(EngineObserver):
    """Counts what the device reads."""

    tokens = 0

    def unit_finished(self, *, tokens: int, **_: Any) -> None:
        self.tokens += tokens


@pytest.fixture(scope="module")
def text(long_text: str) -> str:
    return long_text[:1_500]


@pytest.fixture(scope="module")
def engine(shallow_model: EmbeddingModel) -> Engine:
    return Engine(shallow_model)


@pytest.fixture(scope="module")
def small(write_checkpoint: WriteCheckpoint) -> Engine:
    """Reads the same text in several blocks, in a few milliseconds."""
    return Engine(calibrated(write_checkpoint("bert"), block_size=16, num_sinks=(1, 1)))


def vectors(engine: Engine, text: str, *, title: str | None = None, **fields: Any) -> Vector:
    document = engine.embed_document(text, chunks=replace(PLAN, **fields), title=title)
    return np.stack([chunk.vector for chunk in document.chunks])


@pytest.mark.parametrize("begins_with_title", [False, True])
@pytest.mark.parametrize("context", UNLINKED)
def test_a_name_stands_for_its_shares(
    small: Engine, text: str, context: Context, begins_with_title: bool
) -> None:
    alone, opening, title, _ = SHARES[context]
    text = ("Statements\n\n" if begins_with_title else "It says:\n\n") + text
    own = title if begins_with_title else opening
    by_name = vectors(small, text, context=context)
    for other in UNLINKED:
        np.testing.assert_array_equal(
            vectors(small, text, context=other, alone=alone, opening=own), by_name
        )
    assert np.array_equal(by_name, vectors(small, text)) == (context == "balanced")


def test_a_title_stands_in_place_of_the_opening(engine: Engine, text: str) -> None:
    title = "Statements of the language"
    [of_title] = engine.embed([title])
    plain = vectors(engine, text, context="title", opening=0)
    wanted = plain + of_title
    wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    found = vectors(engine, text, context="title", title=title)
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    late = vectors(engine, text, context="late") + 0.5 * of_title
    late /= np.linalg.norm(late, axis=1, keepdims=True)
    found = vectors(engine, text, context="late", opening=0.5, title=title)
    np.testing.assert_allclose(found, late, atol=1e-6)


def test_the_documents_own_vector_and_its_cost(engine: Engine, text: str) -> None:
    late = engine.embed_document(text, chunks=replace(PLAN, context="late"))
    titled = engine.embed_document(text, chunks=PLAN, title="A title")
    np.testing.assert_array_equal(late.vector, titled.vector)
    assert late.accounting.tokens_alone == 0
    num_chunks = len(late.chunks)
    assert titled.accounting.tokens_alone == late.tokens - 2 + 2 * num_chunks + 4
    only_title = engine.embed_document(
        text, chunks=replace(PLAN, context="late", opening=1), title="A title"
    )
    assert only_title.accounting.tokens_alone == 4
    one_pass = engine.embed_document("Otters\n\n" + text, chunks=replace(PLAN, context="one_pass"))
    assert one_pass.accounting.tokens_alone == 0


def test_a_title_is_read_behind_the_prompt(shallow_model: EmbeddingModel, text: str) -> None:
    checkpoint = replace(shallow_model.checkpoint, prompts={"passage": "passage: "})
    model = replace(shallow_model, parts=replace(shallow_model.parts, checkpoint=checkpoint))
    plan, options = replace(PLAN, context="late", opening=10), EmbedOptions(prompt_name="passage")
    with Engine(model) as engine:
        document = engine.embed_document(text, chunks=plan, title="A title", options=options)
        [of_title] = engine.embed(["A title"], options=options)
    assert min(float(chunk.vector @ of_title) for chunk in document.chunks) > 0.99


@pytest.mark.parametrize(
    ("title", "fields", "code"),
    [
        ("", {}, "empty_title"),
        (" \n\t", {}, "empty_title"),
        ("a\ud800b", {}, "invalid_unicode"),
        ("A title", {"context": "late"}, "unused_title"),
        ("A title", {"context": "alone"}, "unused_title"),
        ("A title", {"opening": 0}, "unused_title"),
        ("title " * 511, {}, "title_too_long"),
    ],
)
def test_titles_that_are_refused(
    engine: Engine, text: str, title: str, fields: dict[str, Any], code: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        vectors(engine, text, title=title, **fields)
    error = caught.value
    assert (error.code, error.param) == (code, "title")
    if code == "unused_title":
        assert error.limit == "balanced, title, opening, one_pass, linked"
    if code == "title_too_long":
        assert isinstance(error, TextTooLong)
        assert (error.limit, error.actual) == (512, 513)


def test_a_title_without_chunks_is_refused(engine: Engine) -> None:
    with pytest.raises(InvalidInput, match="chunking asks for none"):
        engine.embed_document("a text", title="A title")


def test_unknown_contexts_are_refused_with_the_known_ones(engine: Engine) -> None:
    known = "balanced, late, alone, title, opening, one_pass, linked"
    with pytest.raises(InvalidInput, match=f"{known}, got 'early'") as caught:
        vectors(engine, "a text", context="early")
    assert (caught.value.code, caught.value.param) == ("invalid_chunking", "chunking.context")
    with pytest.raises(InvalidInput, match=known):
        engine.plan(100, context="early")  # type: ignore[arg-type]


def test_a_plan_has_the_second_reading(engine: Engine) -> None:
    plain, late, balanced, largest = (
        engine.plan(8_192),
        engine.plan(8_192, context="late"),
        engine.plan(8_192, context="balanced"),
        engine.plan(1 << 40, context="balanced"),
    )
    assert plain.tokens_alone == late.tokens_alone == 0
    assert balanced.tokens_alone == 8_190 + 31 + 2 * 33
    assert 1.5 < balanced.seconds / plain.seconds < 2.6
    assert largest.tokens_alone > 1 << 40


def test_softmax_models_read_passages_alone_too(published_model: EmbeddingModel, text: str) -> None:
    with Engine(published_model) as engine:
        alone = vectors(engine, text, context="alone")
        [ids] = published_model.tokenizer.encode_batch([text])
        own = engine.embed([ids.ids[1:65].tolist()])
        np.testing.assert_allclose(alone[0], own[0], atol=1e-6)
        assert not np.array_equal(vectors(engine, text), vectors(engine, text, context="late"))
        assert 1 < engine.plan(4_096, context="alone").seconds / engine.plan(4_096).seconds < 2.5


def test_chunks_of_one_token(engine: Engine) -> None:
    document = engine.embed_document("one two three " * 40, chunks=ChunkPlan(tokens=1))
    assert len(document.chunks) == 120
    assert document.accounting.tokens_alone == 3 * 120 + 33


def test_progress_goes_on_from_what_is_read_alone(
    shallow_model: EmbeddingModel, long_text: str
) -> None:
    events: list[DocumentEvent] = []
    text = long_text[:12_000]

    async def work(engine: AsyncEngine) -> int:
        found = await engine.embed_document(text, chunks=PLAN, on_event=events.append)
        told = [chunk for one in events if isinstance(one, ChunksReady) for chunk in one.chunks]
        assert len(told) == len(found.chunks)
        for one, other in zip(told, found.chunks, strict=True):
            np.testing.assert_array_equal(one.vector, other.vector)
        return found.tokens

    tokens = serve([shallow_model], work)
    progress = [event for event in events if isinstance(event, Progress)]
    done = [event.tokens_done for event in progress]
    assert done == sorted(done)
    assert done[-1] == tokens > 2_048
    assert isinstance(events[0], Progress)
    assert 0.4 * tokens < done[0] < 0.6 * tokens, "the passages read alone are half of the work"
    assert all(event.seconds_left is not None for event in progress)


def test_a_deadline_that_the_second_reading_would_miss_is_refused_at_once(
    shallow_model: EmbeddingModel, text: str, long_text: str
) -> None:
    async def work(engine: AsyncEngine) -> None:
        # Millions of tokens read alone: minutes on any CPU, while planning takes a second.
        plan = ChunkPlan(tokens=500, overlap=499)
        with pytest.raises(DeadlineExceeded, match='"late" reads no passage alone'):
            await engine.embed_document(long_text[:24_000], chunks=plan, timeout_s=20)
        await engine.embed_document(text, chunks=replace(plan, context="late"), timeout_s=60)

    serve([shallow_model], work)


def test_a_full_queue_refuses_a_document_before_its_passages_are_read(
    shallow_model: EmbeddingModel, text: str
) -> None:
    config = EngineConfig(device="cpu", max_queue_tokens=1_500)
    begun, let_run = threading.Event(), threading.Event()
    let_run.set()

    class HeldEngine(AsyncEngine):
        def _run_batch(self, name: str, texts: Sequence[PreparedText]) -> list[Vector]:
            begun.set()
            assert let_run.wait(60)
            return super()._run_batch(name, texts)

    async def run() -> None:
        async with HeldEngine([shallow_model], config=config) as engine:
            begun.clear()
            let_run.clear()
            # The first runs, and the others wait behind it.
            waiting = [asyncio.create_task(engine.embed([text]))]
            assert await asyncio.to_thread(begun.wait, 60)
            waiting += [asyncio.create_task(engine.embed([text])) for _ in range(3)]
            while engine._worker.has_room(1_200):
                await asyncio.sleep(0.01)
            with pytest.raises(QueueFull):
                await engine.embed_document(text * 3, chunks=PLAN)
            let_run.set()
            await asyncio.gather(*waiting)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("context", "title"),
    [
        *((context, None) for context in SHARES),
        *((name, "Statements of the language") for name in SHARES if SHARES[name].opening > 0),
    ],
)
def test_chunks_without_the_documents_vector_are_the_same_chunks(
    shallow_model: EmbeddingModel, text: str, context: Context, title: str | None
) -> None:
    plan = replace(PLAN, context=context)

    async def run() -> tuple[DocumentEmbedding, DocumentChunks]:
        async with AsyncEngine([shallow_model]) as engine:
            asked: dict[str, Any] = {"chunks": plan, "title": title}
            options = EmbedOptions(normalize=False)
            whole = await engine.embed_document(text, **asked, options=options)
            return whole, await engine.embed_chunks(text, **asked, options=options)

    whole, only_chunks = asyncio.run(run())
    for one, other in zip(only_chunks.chunks, whole.chunks, strict=True):
        np.testing.assert_array_equal(one.vector, other.vector)
        assert (one.index, one.tokens, one.characters) == (
            *(other.index, other.tokens, other.characters),
        )
    assert only_chunks.accounting.tokens_alone == whole.accounting.tokens_alone
    assert only_chunks.accounting.tokens == whole.accounting.tokens
    assert only_chunks.accounting.queue_s > 0


def test_chunks_that_need_nothing_of_a_document_do_not_read_it(
    shallow_model: EmbeddingModel, text: str
) -> None:
    async def tokens_run(context: Context) -> int:
        read = TokensRead()
        async with AsyncEngine([shallow_model], observer=read) as engine:
            before = read.tokens  # of what warms the model up
            await engine.embed_chunks(text, chunks=replace(PLAN, context=context))
        return read.tokens - before

    late, alone, opening, balanced = (
        asyncio.run(tokens_run(context)) for context in ("late", "alone", "opening", "balanced")
    )
    assert alone < late * 1.1
    assert alone < opening < alone + 40
    assert balanced == late + opening


def test_a_passage_read_alone_is_the_text_of_its_own(engine: Engine, text: str) -> None:
    """To the bit, and with the length that it has as a text."""
    options = EmbedOptions(normalize=False)
    document = engine.embed_document(
        text, chunks=SentencePlan(min_tokens=20, context="alone"), options=options
    )
    for chunk in document.chunks:
        [own] = engine.embed([text[chunk.characters.start : chunk.characters.end]], options=options)
        np.testing.assert_array_equal(chunk.vector, own)
