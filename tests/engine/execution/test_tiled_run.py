"""Long texts as their callers see them: the same vectors, events, and memory that runs out."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest
import torch

from engine.async_engine import AsyncEngine
from engine.config import EngineConfig
from engine.errors import InsufficientMemory
from engine.execution.documents import prepare_document
from engine.execution.model_runner import TiledRun, run_batch
from engine.model.embedding_model import EmbeddingModel
from engine.model.encoder import Encoder
from engine.model.pooling import PooledSpan, SpanPools, pool
from engine.scheduling.observer import EngineObserver
from engine.types import ChunkPlan, ChunksReady, DocumentEvent, EmbedOptions, Progress, Vector

OPTIONS = EmbedOptions()


@pytest.fixture(scope="module")
def document(long_text: str) -> str:
    """Some 2,500 tokens."""
    return long_text[:11_000]


@pytest.fixture
def small_blocks(shallow_model: EmbeddingModel) -> EmbeddingModel:
    """Its tiles can be halved twice."""
    assert shallow_model.calibration is not None
    return shallow_model.with_calibration(replace(shallow_model.calibration, block_size=256))


class Counts(EngineObserver):
    def __init__(self) -> None:
        self.units: list[str] = []
        self.num_preemptions = self.num_recoveries = 0
        self.rejected_for: list[str] = []
        self.cancelled_for: list[str] = []

    def unit_finished(self, *, unit: str, **_: object) -> None:
        self.units.append(unit)

    def preempted(self) -> None:
        self.num_preemptions += 1

    def recovered_from_oom(self) -> None:
        self.num_recoveries += 1

    def rejected(self, *, reason: str) -> None:
        self.rejected_for.append(reason)

    def cancelled(self, *, reason: str) -> None:
        self.cancelled_for.append(reason)


def engine_of(
    model: EmbeddingModel, observer: EngineObserver | None = None, **limits: int
) -> AsyncEngine:
    return AsyncEngine([model], config=EngineConfig(device="cpu", **limits), observer=observer)  # type: ignore[arg-type]


def cosines(a: Vector, b: Vector) -> Vector:
    found: Vector = (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)
    return found


def test_swept_and_packed_give_the_same_vectors(
    shallow_model: EmbeddingModel, document: str
) -> None:
    chunks = ChunkPlan(tokens=100, overlap=30, context="late")
    observer = Counts()

    async def scenario() -> None:
        async with engine_of(shallow_model, observer) as engine:
            swept = await engine.embed_document(document, chunks=chunks)
            (as_text,) = await engine.embed([document])
        async with engine_of(shallow_model, min_sweep_tokens=10**6) as engine:
            packed = await engine.embed_document(document, chunks=chunks)
        assert swept.tokens == packed.tokens > 2_048
        assert observer.units.count("sweep_tile") == 2 * 3 * 3
        assert cosines(swept.vector, packed.vector) > 0.999999
        assert np.array_equal(as_text.vector, swept.vector)
        assert len(swept.chunks) == len(packed.chunks) > 30
        for one, other in zip(swept.chunks, packed.chunks, strict=True):
            assert (one.index, one.tokens, one.characters) == (
                other.index, other.tokens, other.characters
            )  # fmt: skip
            assert cosines(one.vector, other.vector) > 0.999999

    asyncio.run(scenario())


@pytest.mark.parametrize("min_sweep_tokens", [0, 10**6], ids=["swept", "packed"])
def test_events_tell_of_progress_and_of_final_chunks(
    min_sweep_tokens: int, shallow_model: EmbeddingModel, document: str
) -> None:
    events: list[DocumentEvent] = []

    async def scenario() -> None:
        async with engine_of(shallow_model, min_sweep_tokens=min_sweep_tokens) as engine:
            found = await engine.embed_document(
                document, chunks=ChunkPlan(tokens=128, context="late"), on_event=events.append
            )
        chunks = [
            chunk for event in events if isinstance(event, ChunksReady) for chunk in event.chunks
        ]
        assert [chunk.index for chunk in chunks] == list(range(len(found.chunks)))
        for told, final in zip(chunks, found.chunks, strict=True):
            assert np.array_equal(told.vector, final.vector)
        progress = [event for event in events if isinstance(event, Progress)]
        done = [event.tokens_done for event in progress]
        assert done == sorted(done)
        assert done[-1] == found.tokens
        assert {event.tokens_total for event in progress} == {found.tokens}
        assert progress[-1].seconds_left == pytest.approx(0, abs=1e-6)
        if not min_sweep_tokens:
            assert len(progress) == 3 * 3
            first_chunks = next(
                n for n, event in enumerate(events) if isinstance(event, ChunksReady)
            )
            assert first_chunks < len(events) - 3, "they come as they become final"

    asyncio.run(scenario())


def test_a_listener_that_raises_harms_nobody(shallow_model: EmbeddingModel, document: str) -> None:
    heard = []

    def listener(event: DocumentEvent) -> None:
        heard.append(event)
        raise ValueError("not my day")

    async def scenario() -> None:
        async with engine_of(shallow_model) as engine:
            found = await engine.embed_document(document, on_event=listener)
            assert found.tokens > 2_048

    asyncio.run(scenario())
    assert len(heard) == 1


def test_cancelling_a_document_frees_the_device(
    shallow_model: EmbeddingModel, document: str
) -> None:
    observer = Counts()

    async def scenario() -> None:
        async with engine_of(shallow_model, observer) as engine:
            begun = asyncio.Event()
            task = asyncio.create_task(
                engine.embed_document(document, on_event=lambda _: begun.set())
            )
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await engine.embed(["short"])
        assert observer.cancelled_for == ["caller_left"]
        assert observer.units.count("sweep_tile") < 3 * 3

    asyncio.run(scenario())


# Memory


class SmallMemory:
    """An encoder's layer that runs out of memory whenever it is given more rows than this."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, max_rows: int) -> None:
        original = Encoder.embed
        self.failures = 0

        def embed(encoder: Encoder, ids: object, *args: object) -> object:
            if len(ids) > max_rows:  # type: ignore[arg-type]
                self.failures += 1
                raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
            return original(encoder, ids, *args)  # type: ignore[arg-type]

        monkeypatch.setattr(Encoder, "embed", embed)


def test_tiles_that_do_not_fit_are_made_smaller(
    small_blocks: EmbeddingModel, document: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = prepare_document(
        document, small_blocks, OPTIONS, ChunkPlan(tokens=128, context="late")
    )
    expected = run_batch(small_blocks, [prepared])[0]
    memory = SmallMemory(monkeypatch, max_rows=300)
    num_recoveries = 0

    def count() -> None:
        nonlocal num_recoveries
        num_recoveries += 1

    sweep = TiledRun(small_blocks, prepared, on_out_of_memory=count)
    while sweep.result is None:
        sweep.step()
    assert memory.failures == num_recoveries == 2
    assert cosines(sweep.result, expected).min() > 0.999999


def test_what_does_not_fit_in_the_smallest_tiles_fails_alone(
    small_blocks: EmbeddingModel, document: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    observer = Counts()

    async def scenario() -> None:
        async with engine_of(small_blocks, observer) as engine:
            with monkeypatch.context() as patch:
                SmallMemory(patch, max_rows=100)
                with pytest.raises(InsufficientMemory):
                    await engine.embed_document(document)
            assert engine.ready
            assert (await engine.embed_document(document)).tokens > 2_048
        assert observer.num_recoveries == 2

    asyncio.run(scenario())


# Pools


@pytest.mark.parametrize("pooling", ["mean", "max", "cls"])
def test_pools_of_tiles_are_pools_of_the_whole(pooling: str) -> None:

    states = torch.randn(100, 8, generator=torch.Generator().manual_seed(1))
    ends = [(0, 100), (3, 4), (10, 50), (49, 51), (50, 100), (99, 100), (0, 1), (20, 80)]
    spans = [PooledSpan(*span) for span in ends] + [PooledSpan(0, 100, 0.4), PooledSpan(9, 90, 1)]
    pools = SpanPools(spans, pooling, width=8, device=states.device)  # type: ignore[arg-type]
    for start in range(0, 100, 7):
        pools.add(start, states[start : start + 7])
    expected = pool(states, spans, pooling)  # type: ignore[arg-type]
    torch.testing.assert_close(pools.vectors(slice(0, len(spans))), expected)


def test_pools_know_how_many_are_final_in_order() -> None:

    spans = [PooledSpan(0, 5), PooledSpan(3, 20), PooledSpan(4, 10)]
    pools = SpanPools(spans, "mean", width=2, device=torch.device("cpu"))
    assert pools.num_final(4, 0) == 0
    assert pools.num_final(10, 0) == 1
    assert pools.num_final(10, 1) == 0
    assert pools.num_final(20, 1) == 2
