"""Full queues, deadlines, callers that leave and engines that stop: every call is answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from engine.async_engine import AsyncEngine
from engine.attention_types import MapOptions
from engine.config import EngineConfig
from engine.errors import (
    DeadlineExceeded,
    EngineUnavailable,
    InsufficientMemory,
    InvalidInput,
    ModelNotFound,
    QueueFull,
)
from engine.execution.document_stream import DocumentStream
from engine.model.embedding_model import EmbeddingModel
from engine.scheduling.deadline import Deadline
from engine.scheduling.observer import EngineObserver
from engine.types import ChunkPlan, EmbedOptions, Span, SpanPlan
from tests.engine.serving import serve


class Tally(EngineObserver):
    def __init__(self) -> None:
        self.rejections: list[str] = []
        self.num_accepted = 0
        self.num_tokenised = 0
        self.tokenised_each: list[tuple[int, int]] = []

    def rejected(self, *, reason: str) -> None:
        self.rejections.append(reason)

    def accepted(self, *, model: str, tokens: int) -> None:
        self.num_accepted += 1

    def tokenised(self, *, texts: int, tokens: int, seconds: float) -> None:
        self.num_tokenised += texts
        self.tokenised_each.append((texts, tokens))
        assert seconds > 0


TEXT = "Otters live by rivers, and eat fish."
MAP = MapOptions(layer=0, head=0)
SPANS = SpanPlan(spans=(Span(0, 6),))


@pytest.mark.parametrize(
    "call",
    [
        lambda engine: engine.tokenize(TEXT),
        lambda engine: engine.plan(text=TEXT),
        lambda engine: engine.embed([TEXT]),
        lambda engine: engine.embed_document(TEXT),
        lambda engine: engine.embed_chunks(TEXT, chunks=SPANS),
        lambda engine: streamed(engine.open_document()),
        lambda engine: streamed(engine.open_chunks(chunks=SPANS)),
        lambda engine: engine.embed_living_document(TEXT),
        lambda engine: engine.diagnose(TEXT, instruments=["entropy"]),
        lambda engine: engine.attention_map(TEXT, options=MAP),
        lambda engine: engine.structure(TEXT),
        lambda engine: engine.keep_open(TEXT),
    ],
)
def test_every_text_that_is_tokenised_is_reported_once(
    shallow_model: EmbeddingModel, call: Callable[[AsyncEngine], Awaitable[object]]
) -> None:
    tally = Tally()
    serve([shallow_model], call, observer=tally)
    _canary, *others = tally.tokenised_each
    assert others == [(1, 12)]


async def streamed(document: DocumentStream[Any]) -> None:
    for piece in (TEXT[:9], TEXT[9:]):
        await document.feed(piece)
    await document.finish()


def test_refusals_are_counted_once(shipped_models: dict[str, EmbeddingModel]) -> None:
    tally = Tally()

    async def work(engine: AsyncEngine) -> None:
        for inputs, options in (
            ([""], EmbedOptions()),
            (["x"], EmbedOptions(dimensions=0)),
            ([[99_999_999]], EmbedOptions()),
        ):
            with pytest.raises(InvalidInput):
                await engine.embed(inputs, options=options)
        with pytest.raises(DeadlineExceeded):
            await engine.embed(["x"], timeout_s=0)

    serve(shipped_models.values(), work, observer=tally)
    assert tally.rejections == [
        "empty_text",
        "invalid_dimensions",
        "invalid_token_id",
        "deadline_exceeded",
    ]


def test_a_call_of_several_documents_is_refused_once(
    shipped_models: dict[str, EmbeddingModel], long_text: str
) -> None:
    config, tally = EngineConfig(device="cpu", max_sweep_bytes=1 << 20), Tally()

    async def work(engine: AsyncEngine) -> None:
        texts = [long_text[start : start + 6_000] for start in range(4)]
        for call in (
            engine.rank("a query", ["short", *texts]),
            engine.embed_chunks_of(texts, chunks=ChunkPlan(tokens=200)),
        ):
            with pytest.raises(InsufficientMemory):
                await call

    serve(shipped_models.values(), work, config=config, observer=tally)
    assert tally.rejections == ["insufficient_memory"] * 2
    assert tally.num_accepted == len(shipped_models), "only each model's first text"


def test_documents_that_are_refused_as_they_begin_count_once(
    shipped_models: dict[str, EmbeddingModel], long_text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when their deadline is missed only then: here nothing is checked before."""
    monkeypatch.setattr(AsyncEngine, "_admit_documents", lambda *_: None)
    config, tally = EngineConfig(device="cpu", max_sweep_bytes=1 << 20), Tally()

    async def work(engine: AsyncEngine) -> None:
        texts = [long_text[start : start + 6_000] for start in range(4)]
        with pytest.raises(InsufficientMemory):
            await engine.embed_chunks_of(texts, chunks=ChunkPlan(tokens=200))

    serve(shipped_models.values(), work, config=config, observer=tally)
    assert tally.rejections == ["insufficient_memory"]


def test_an_unknown_model_is_counted_where_the_service_asks_for_its_name(
    shipped_models: dict[str, EmbeddingModel],
) -> None:
    tally = Tally()

    async def work(engine: AsyncEngine) -> None:
        with pytest.raises(ModelNotFound):
            engine.resolve("other")

    serve(shipped_models.values(), work, observer=tally)
    assert tally.rejections == ["model_not_found"]


def test_a_full_queue_refuses_and_says_when_to_come_back(
    shipped_models: dict[str, EmbeddingModel], long_text: str
) -> None:
    config = EngineConfig(device="cpu", max_queue_tokens=3000)

    async def work(engine: AsyncEngine) -> list[object]:
        text = long_text[:8000]
        calls = [engine.embed([text]) for _ in range(12)]
        return list(await asyncio.gather(*calls, return_exceptions=True))

    answers = serve(shipped_models.values(), work, config=config)
    refused = [answer for answer in answers if isinstance(answer, QueueFull)]
    assert refused
    assert len(refused) < len(answers)
    assert refused[0].limit == 3000
    assert refused[0].retry_after_s is not None


def test_a_call_that_waits_for_room_is_tokenised_once(
    shipped_models: dict[str, EmbeddingModel], real_texts: list[str], long_text: str
) -> None:
    config, tally = EngineConfig(device="cpu", max_queue_tokens=200), Tally()
    num_canaries = len(shipped_models)

    async def work(engine: AsyncEngine) -> None:
        texts = [text[:400] for text in real_texts[:20]]
        calls = [engine.embed([text], wait_for_room=True) for text in texts]
        states = [engine.embed_tokens([text], wait_for_room=True) for text in texts[:5]]
        assert len(await asyncio.gather(*calls, *states)) == 25
        # One runs, one waits, and there is no room for a third in time.
        long_ones = [
            asyncio.create_task(engine.embed([long_text[:10_000]], wait_for_room=True))
            for _ in range(2)
        ]
        await asyncio.sleep(0.1)
        with pytest.raises(DeadlineExceeded):
            await engine.embed(["in a hurry " * 40], wait_for_room=True, timeout_s=0.05)
        await asyncio.gather(*long_ones)

    serve(shipped_models.values(), work, config=config, observer=tally)
    assert tally.rejections == ["deadline_exceeded"]
    assert tally.num_tokenised == 25 + 3 + num_canaries


def test_a_call_larger_than_the_queue_goes_through_it_piece_by_piece(
    shipped_models: dict[str, EmbeddingModel],
) -> None:
    texts = [f"{number} some more words" for number in range(140)]
    config = EngineConfig(device="cpu", max_queue_tokens=100)
    found = serve(shipped_models.values(), lambda engine: engine.embed(texts), config=config)
    assert len(found) == 140


def test_one_bad_text_of_many_gives_the_others_up(
    shipped_models: dict[str, EmbeddingModel], real_texts: list[str]
) -> None:
    """The bad one is read after the first have been queued."""

    async def work(engine: AsyncEngine) -> None:
        with pytest.raises(InvalidInput) as caught:
            await engine.embed([*real_texts[:100], [99_999_999]])
        assert caught.value.param == "input[100]"
        assert len(await engine.embed(["still here"])) == 1

    serve(shipped_models.values(), work)


def test_cancelling_and_deadlines_leave_the_engine_well(
    shipped_models: dict[str, EmbeddingModel], long_text: str
) -> None:
    async def work(engine: AsyncEngine) -> None:
        long_one = asyncio.create_task(engine.embed([long_text[:60_000]]))
        await asyncio.sleep(0.1)
        with pytest.raises(DeadlineExceeded):
            await engine.embed(["in a hurry"], timeout_s=0.0005)
        long_one.cancel()
        with pytest.raises(asyncio.CancelledError):
            await long_one
        assert len(await engine.embed(["still here"])) == 1
        assert engine.ready

    serve(shipped_models.values(), work)


def test_reading_counts_towards_every_deadline(shipped_models: dict[str, EmbeddingModel]) -> None:
    text = "many different words, read for a while " * 20_000
    calls: list[Callable[[AsyncEngine], Awaitable[object]]] = [
        lambda engine: engine.embed_document(text, timeout_s=0.03),
        lambda engine: engine.diagnose(text, timeout_s=0.03),
        lambda engine: engine.structure(text, timeout_s=0.03),
        lambda engine: engine.tokenize(text, timeout_s=0.03),
        lambda engine: engine.plan(text=text, timeout_s=0.03),
    ]

    async def work(engine: AsyncEngine) -> None:
        for call in calls:
            started_at = asyncio.get_running_loop().time()
            with pytest.raises(DeadlineExceeded) as caught:
                await call(engine)
            assert caught.value.limit == 0.03
            assert asyncio.get_running_loop().time() - started_at < 1.5

    serve(shipped_models.values(), work)


def test_the_first_stop_is_the_one_that_counts(
    shipped_models: dict[str, EmbeddingModel], long_text: str
) -> None:
    """After a stop with a deadline, leaving the engine's context does not wait again."""
    config = EngineConfig(device="cpu", drain_timeout_s=60, min_sweep_tokens=1_000_000)
    tally = Tally()

    async def work(engine: AsyncEngine) -> tuple[AsyncEngine, float]:
        num_before = tally.num_accepted
        busy = asyncio.create_task(engine.embed([long_text[:8_000]]))
        while tally.num_accepted == num_before:
            await asyncio.sleep(0.01)
        await engine.stop(Deadline(0.05))
        with pytest.raises(EngineUnavailable, match=r"after 0\.05 s"):
            await busy
        return engine, time.monotonic()

    engine, stopped_at = serve(shipped_models.values(), work, config=config, observer=tally)
    left_at = time.monotonic()
    assert left_at - stopped_at < 1
    while engine._worker.alive:  # the unit it was in, which nobody waits for
        assert time.monotonic() - left_at < 60
        time.sleep(0.05)


def test_stopping_answers_what_was_accepted(
    shipped_models: dict[str, EmbeddingModel], real_texts: list[str]
) -> None:
    async def work(engine: AsyncEngine) -> tuple[list[object], Exception | None]:
        calls = [asyncio.create_task(engine.embed([text])) for text in real_texts[:20]]
        await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        stopping = asyncio.create_task(engine.stop(Deadline(60)))
        await asyncio.sleep(0)
        assert not engine.ready
        refusal = None
        try:
            await engine.embed(["too late"])
        except EngineUnavailable as error:
            refusal = error
        answers = await asyncio.gather(*calls, return_exceptions=True)
        await stopping
        return list(answers), refusal

    answers, refusal = serve(shipped_models.values(), work)
    assert isinstance(refusal, EngineUnavailable)
    assert all(isinstance(answer, list | EngineUnavailable) for answer in answers)
    assert any(isinstance(answer, list) for answer in answers)
