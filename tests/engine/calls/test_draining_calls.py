"""Calls whose first part was admitted before the engine drains or its queue is full."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from engine.async_engine import AsyncEngine
from engine.config import EngineConfig
from engine.errors import EngineUnavailable, QueueFull
from engine.model.embedding_model import EmbeddingModel
from engine.scheduling.observer import EngineObserver
from engine.scheduling.request import TimedResult
from engine.types import ChunkPlan, RankOptions
from tests.engine.small_models import calibrated

if TYPE_CHECKING:
    from tests.conftest import WriteCheckpoint

SENTENCE = "the quick brown fox jumps over seven wizards. "
PARAGRAPHS = [f"number {number}: {SENTENCE * 6}" for number in range(100)]
TEXT = "\n\n".join(PARAGRAPHS)
PARTS = [f"{number} {SENTENCE * 40}" for number in range(4)]
CHUNKS = ChunkPlan(tokens=100)


@pytest.fixture
def model(write_checkpoint: WriteCheckpoint) -> EmbeddingModel:
    return calibrated(write_checkpoint("bert"), block_size=64, num_sinks=(1, 1))


class OnFirstPart(EngineObserver):
    """Does something as soon as the first part of a call has been read."""

    def __init__(self) -> None:
        self.act: Callable[[], None] | None = None

    def served(self, results: Sequence[TimedResult[Any]]) -> None:
        if self.act is not None:
            self.act()


async def documents(engine: AsyncEngine, start: Callable[[], None]) -> int:
    start()
    return len(await engine.embed_chunks_of(PARTS, chunks=CHUNKS))


async def given_chunks(engine: AsyncEngine, start: Callable[[], None]) -> int:
    start()
    return len(await engine.embed_given_chunks([[part, part] for part in PARTS]))


async def ranking(engine: AsyncEngine, start: Callable[[], None]) -> int:
    start()
    return len((await engine.rank("seven wizards", PARTS)).texts)


async def ranking_by_tokens(engine: AsyncEngine, start: Callable[[], None]) -> int:
    start()
    ranked = await engine.rank("seven wizards", PARTS, options=RankOptions(scoring="tokens"))
    return len(ranked.texts)


async def rounds(engine: AsyncEngine, start: Callable[[], None]) -> int:
    first = await engine.embed_living_document(TEXT, chunks=CHUNKS)
    start()
    edited = TEXT.replace("number 30", "another beginning of a paragraph")
    update = await engine.update_document(first.record, edited, max_staleness=0.0)
    assert update.rounds > 1
    return len(PARTS)


Call = Callable[[AsyncEngine, Callable[[], None]], Awaitable[int]]


@pytest.mark.parametrize("call", [documents, given_chunks, ranking, ranking_by_tokens, rounds])
def test_a_call_that_has_begun_is_read_to_its_end(model: EmbeddingModel, call: Call) -> None:
    config = EngineConfig(device="cpu", max_batch_tokens=300, max_token_states=600)
    observer = OnFirstPart()

    async def scenario() -> None:
        async with AsyncEngine([model], config=config, observer=observer) as engine:

            def start() -> None:
                observer.act = engine._worker.stop_accepting

            assert await call(engine, start) == len(PARTS)
            with pytest.raises(EngineUnavailable):
                await engine.embed(["too late"])

    asyncio.run(scenario())


def test_later_documents_of_a_call_are_not_refused_for_a_full_queue(model: EmbeddingModel) -> None:
    """Another caller fills the queue whenever there is room."""
    config = EngineConfig(device="cpu", max_batch_tokens=300, max_queue_tokens=1_000)
    observer = OnFirstPart()

    async def scenario() -> None:
        async with AsyncEngine([model], config=config, observer=observer) as engine:
            begun = asyncio.Event()
            observer.act = begun.set
            call = asyncio.create_task(engine.embed_chunks_of(PARTS * 2, chunks=CHUNKS))
            await begun.wait()
            others: list[asyncio.Task[Any]] = []
            while not call.done():
                others.append(asyncio.create_task(engine.embed([SENTENCE * 25])))
                await asyncio.sleep(0.001)
            assert len(await call) == 2 * len(PARTS)
            answers = await asyncio.gather(*others, return_exceptions=True)
            assert any(isinstance(answer, QueueFull) for answer in answers)

    asyncio.run(scenario())
