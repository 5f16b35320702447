"""Documents in pieces: the same tokens, chunks and vectors as when they come whole."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter, sleep

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from engine.async_engine import AsyncEngine
from engine.config import EngineConfig
from engine.errors import DeadlineExceeded, InvalidInput, TextTooLong
from engine.execution.document_stream import READ_BYTES
from engine.execution.documents import DocumentReader, prepare_document
from engine.execution.inputs import PreparedText, prepare
from engine.model.embedding_model import EmbeddingModel
from engine.scheduling.observer import EngineObserver
from engine.types import (
    Chunking,
    ChunkPlan,
    ChunksReady,
    DocumentEmbedding,
    DocumentEvent,
    EmbedOptions,
    HeadingPlan,
    Progress,
    SentencePlan,
    Span,
    SpanPlan,
    Truncate,
)
from tests.engine.in_pieces import MEGABYTE, feed_all, read, stream
from tests.engine.serving import serve

TEXT = "# Größe\n\nNaïve 😀 e\u0301 שלום. 日本語。 unbelievabilities [SEP] " + "x" * 150 + "\n"


def with_limit(model: EmbeddingModel, max_tokens: int, prompt: str = "") -> EmbeddingModel:
    """The same model as if it read no more, and had a prompt."""
    prompts = {"query": prompt} if prompt else {}
    return replace(
        model,
        info=replace(model.info, max_tokens=max_tokens),
        parts=replace(model.parts, checkpoint=replace(model.checkpoint, prompts=prompts)),
    )


@pytest.mark.parametrize(("size", "opening"), [(1, 0.0), (1_000, 0.5), (MEGABYTE, 0.0)])
def test_pieces_give_the_whole_documents_embedding(
    shallow_model: EmbeddingModel, size: int, opening: float
) -> None:
    text = TEXT * 40
    plan = SentencePlan(min_tokens=20, opening=opening)
    events: list[DocumentEvent] = []

    async def work(engine: AsyncEngine) -> tuple[DocumentEmbedding, DocumentEmbedding]:
        whole = await engine.embed_document(text, chunks=plan)
        return whole, await stream(engine, text, size, chunks=plan, on_event=events.append)

    whole, streamed = serve([shallow_model], work)
    assert float(whole.vector @ streamed.vector) > 0.999999
    assert len(whole.chunks) == len(streamed.chunks) == 39
    for one, other in zip(whole.chunks, streamed.chunks, strict=True):
        assert (one.tokens, one.characters) == (other.tokens, other.characters)
        assert float(one.vector @ other.vector) > 0.999999
    progress = [event for event in events if isinstance(event, Progress)]
    assert progress[-1].tokens_done == progress[-1].tokens_total == whole.tokens
    ready = [event for event in events if isinstance(event, ChunksReady)]
    told = [chunk.index for event in ready for chunk in event.chunks]
    assert told == list(range(len(whole.chunks)))


@pytest.mark.parametrize(
    "plan",
    [
        ChunkPlan(tokens=100, overlap=30),
        ChunkPlan(tokens=50, opening=0.7, alone=0.3),
        HeadingPlan(max_tokens=200),
        SpanPlan(spans=(Span(900, 3_000), Span(0, 4_000), Span(40, 60))),
    ],
    ids=lambda plan: type(plan).__name__,
)
def test_packed_swept_and_streamed_are_one(
    shallow_model: EmbeddingModel, long_text: str, plan: Chunking
) -> None:
    text = long_text[:4_000]

    def with_sweeps_from(num_tokens: int) -> EmbeddingModel:
        config = EngineConfig(device="cpu", min_sweep_tokens=num_tokens)
        return replace(shallow_model, config=config)

    packed = serve(
        [with_sweeps_from(100_000)], lambda engine: engine.embed_document(text, chunks=plan)
    )
    swept = serve([with_sweeps_from(256)], lambda engine: engine.embed_document(text, chunks=plan))
    streamed = serve([with_sweeps_from(256)], lambda engine: stream(engine, text, 999, chunks=plan))
    for other in (swept, streamed):
        assert float(packed.vector @ other.vector) > 0.999999
        for one, same in zip(packed.chunks, other.chunks, strict=True):
            assert (one.tokens, one.characters) == (same.tokens, same.characters)
            assert one.headings == same.headings
            assert float(one.vector @ same.vector) > 0.999999


@given(
    pieces=st.lists(st.text(max_size=30), max_size=8),
    prompt=st.sampled_from(["", "query: ", "query"]),
    max_tokens=st.integers(8, 60),
    policy=st.sampled_from(["error", "start", "end"]),
    name=st.sampled_from([None, "query"]),
)
@settings(deadline=None)
def test_a_document_is_read_as_a_text_is(
    shallow_model: EmbeddingModel,
    pieces: list[str],
    prompt: str,
    max_tokens: int,
    policy: Truncate,
    name: str | None,
) -> None:
    text = "".join(pieces)
    model = with_limit(shallow_model, max_tokens, prompt)
    options = EmbedOptions(truncate=policy, prompt_name=name if prompt else None)

    def outcome(attempt: Callable[[], PreparedText]) -> object:
        try:
            found = attempt()
        except InvalidInput as error:
            return error.code, error.limit, error.actual
        return found.ids.tolist(), found.num_tokens, found.dropped

    expected = outcome(lambda: prepare([text], model, options)[0])
    assume(text)
    assert outcome(lambda: read(model, pieces, options)) == expected


@pytest.mark.parametrize("policy", ["start", "end"])
def test_what_is_dropped_is_not_kept_in_memory(
    shallow_model: EmbeddingModel, policy: Truncate
) -> None:
    model = with_limit(shallow_model, 1_000)
    reader = DocumentReader(model, EmbedOptions(truncate=policy), None, in_pieces=True)
    for _ in range(24):
        reader.feed("some words " * 5_000)
    assert reader._kept._num_buffered < 200_000 < reader.num_tokens
    prepared = reader.finish()
    assert prepared.num_embedded == 1_000
    assert prepared.num_tokens == 240_002
    length = 24 * 55_000
    kept = 998 // 2 * 11
    expected = Span(0, length - kept - 1) if policy == "start" else Span(kept, length - 1)
    assert prepared.dropped == expected


def test_the_prompt_is_no_part_of_chunks_and_is_never_dropped(
    shallow_model: EmbeddingModel,
) -> None:
    model = with_limit(shallow_model, 12, prompt="query: ")
    options = EmbedOptions(prompt_name="query", truncate="start")
    text = "one two. three four. five six seven eight nine ten"
    for plan in (ChunkPlan(tokens=3), SentencePlan(), SpanPlan(spans=(Span(21, 25),))):
        found = read(model, [text], options, plan)
        assert model.tokenizer.tokens_of(found.ids)[:4] == ("[CLS]", "query", ":", "four")
        assert found.chunks[0].tokens.start >= 3
        assert all(chunk.characters.start >= 15 for chunk in found.chunks)
    assert found.dropped == (0, 14)
    (embedded,) = prepare([text], model, options)
    assert embedded.ids.tolist() == found.ids.tolist()
    assert embedded.dropped == found.dropped


def test_chunks_of_a_truncated_document_end_with_it(shallow_model: EmbeddingModel) -> None:
    model = with_limit(shallow_model, 8)
    text = "One two three. Four five six. Seven."
    found = read(model, [text], EmbedOptions(truncate="end"), SentencePlan())
    assert [text[slice(*chunk.characters)] for chunk in found.chunks] == [
        "One two three.",
        "Four five",
    ]
    with pytest.raises(InvalidInput) as caught:
        read(model, [text], EmbedOptions(truncate="end"), SpanPlan(spans=(Span(30, 35),)))
    assert caught.value.code == "empty_chunk"


def test_a_document_that_is_too_long_is_refused_before_its_end(
    shallow_model: EmbeddingModel,
) -> None:
    model = with_limit(shallow_model, 1_000)

    async def work(engine: AsyncEngine) -> InvalidInput:
        document = engine.open_document()
        piece = "some words " * 1_000
        with pytest.raises(TextTooLong) as caught:
            await feed_all(document, [piece] * 1_000)
        with pytest.raises(InvalidInput) as closed:
            await document.finish()
        assert closed.value.code == "document_closed"
        assert document.tokens == 0
        return caught.value

    error = serve([model], work)
    assert (error.code, error.limit) == ("text_too_long", 1_000)
    assert isinstance(error.actual, int)
    assert 1_000 < error.actual < 300_000


def test_nothing_is_taken_after_the_end(shallow_model: EmbeddingModel) -> None:
    async def work(engine: AsyncEngine) -> None:
        document = engine.open_document()
        await document.feed("a text")
        await document.end()
        assert document.tokens == 4
        found = await document.finish()
        assert found.tokens == 4
        for late in (document.feed(b"x"), document.end(), document.finish()):
            with pytest.raises(InvalidInput) as caught:
                await late
            assert caught.value.code == "document_closed"

    serve([shallow_model], work)


def test_time_runs_out_while_pieces_come(shallow_model: EmbeddingModel) -> None:
    async def work(engine: AsyncEngine) -> None:
        document = engine.open_document(timeout_s=0.001)
        await asyncio.sleep(0.01)
        with pytest.raises(DeadlineExceeded) as caught:
            await document.feed(b"x" * READ_BYTES)
        assert caught.value.limit == 0.001
        late = engine.open_document(timeout_s=0.001)
        await late.feed(b"x")
        await asyncio.sleep(0.01)
        with pytest.raises(DeadlineExceeded):
            await late.finish()

    serve([shallow_model], work)


def test_plans_are_checked_before_anything_is_read(shallow_model: EmbeddingModel) -> None:
    async def work(engine: AsyncEngine) -> None:
        plans: list[Chunking] = [ChunkPlan(tokens=0), SpanPlan(spans=(Span(3, 2),))]
        plans += [ChunkPlan(opening=opening) for opening in (-0.1, 10.5, float("nan"))]
        plans += [ChunkPlan(alone=alone) for alone in (-0.1, 1.5, float("nan"))]
        for plan in plans:
            with pytest.raises(InvalidInput) as caught:
                engine.open_document(chunks=plan)
            assert caught.value.code == "invalid_chunking"

    serve([shallow_model], work)


def test_chunks_that_overlap_are_read_alone_whatever_the_queue_holds(
    shallow_model: EmbeddingModel,
) -> None:
    """Together they have many times the document's tokens, and come a few at a time."""
    text, config = "word " * 200, EngineConfig(device="cpu", max_queue_tokens=1_000)

    async def run() -> None:
        async with AsyncEngine([shallow_model], config=config) as engine:
            found = await engine.embed_document(text, chunks=ChunkPlan(tokens=20, overlap=19))
            assert len(found.chunks) == 181
            assert found.accounting.tokens_alone == 181 * 22 + 33
            assert found.accounting.tokens_embedded == 202

    asyncio.run(run())


def test_a_deadline_ends_a_slow_reading(
    shallow_model: EmbeddingModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunking a long text can take seconds, in a thread that nobody waits for then."""

    def slow(_: DocumentReader) -> PreparedText:
        sleep(2)
        raise AssertionError("nobody hears of it")

    monkeypatch.setattr(DocumentReader, "finish", slow)

    async def scenario() -> float:
        async with AsyncEngine([shallow_model], config=EngineConfig(device="cpu")) as engine:
            document = engine.open_document(timeout_s=0.2)
            await document.feed("a text")
            began_at = perf_counter()
            with pytest.raises(DeadlineExceeded):
                await document.end()
            return perf_counter() - began_at

    assert asyncio.run(scenario()) < 1.5


def test_a_deadline_counts_what_is_read_alone(
    shallow_model: EmbeddingModel, long_text: str
) -> None:
    async def work(engine: AsyncEngine) -> None:
        plan = ChunkPlan(tokens=200, overlap=195, alone=0.5)
        with pytest.raises(DeadlineExceeded):
            await engine.embed_document(long_text[:9_000], chunks=plan, timeout_s=1)
        assert (await engine.embed(["short"]))[0].vector.shape == (384,)

    serve([shallow_model], work)


def test_truncated_documents_are_counted(shallow_model: EmbeddingModel) -> None:
    class Tally(EngineObserver):
        num_truncated = 0

        def truncated(self, *, model: str) -> None:
            self.num_truncated += 1

    tally = Tally()

    async def work(engine: AsyncEngine) -> None:
        options = EmbedOptions(truncate="end")
        document = engine.open_document(options=options)
        await document.feed("some words " * 100)
        await document.finish()
        await engine.embed_document("short", options=options)

    serve([with_limit(shallow_model, 50)], work, observer=tally)
    assert tally.num_truncated == 1


def test_whole_documents_say_how_long_they_are(shallow_model: EmbeddingModel) -> None:
    with pytest.raises(TextTooLong) as caught:
        prepare_document("some words " * 6_000, with_limit(shallow_model, 10), EmbedOptions(), None)
    assert (caught.value.limit, caught.value.actual) == (10, 12_002)
