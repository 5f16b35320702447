"""The events of a document, as both protocols send them."""

from __future__ import annotations

import asyncio
from time import sleep

import numpy as np
import pytest

from engine.types import Accounting, Chunk, ChunksReady, DocumentEmbedding, Progress, Span
from service.documents import Event, Finished, OnEvent, stream_events

GRPC_DEFAULT_BYTES = 4 * 1024 * 1024
COST = Accounting(tokens=1, tokens_embedded=1)


@pytest.mark.parametrize(("num_chunks", "dim"), [(0, 384), (5_000, 384), (3, 1_000_000)])
def test_chunks_that_come_at_once_are_sent_a_few_at_a_time(num_chunks: int, dim: int) -> None:
    """By default, a gRPC client refuses messages over 4 MiB."""
    vector = np.zeros(dim, np.float32)
    chunks = tuple(
        Chunk(index=index, tokens=Span(0, 1), characters=Span(0, 1), vector=vector)
        for index in range(num_chunks)
    )
    found = DocumentEmbedding(vector=vector, chunks=chunks, accounting=COST)
    progress = Progress(tokens_done=1, tokens_total=1, seconds_left=0.0)

    async def run(on_event: OnEvent) -> DocumentEmbedding:
        on_event(ChunksReady(chunks=chunks))
        on_event(progress)
        return found

    sent: list[Event] = []

    async def send(event: Event) -> None:
        sent.append(event)

    async def stream() -> None:
        await stream_events(run, send, timeout_s=60, result_model="default")

    asyncio.run(stream())
    *parts, last_but_one, last = sent
    assert (last_but_one, last) == (progress, Finished(model="default", embedding=found))
    ready = [part.chunks for part in parts if isinstance(part, ChunksReady)]
    assert sum(ready, ()) == chunks
    for part in ready:
        assert len(part) <= 1 or len(part) * dim * 4 < GRPC_DEFAULT_BYTES / 4


def test_other_tasks_run_between_the_events_of_many_chunks() -> None:
    """A client that reads quickly gives no reason to wait."""
    chunk = Chunk(
        index=0, tokens=Span(0, 1), characters=Span(0, 1), vector=np.zeros(131_072, np.float32)
    )
    found = DocumentEmbedding(vector=chunk.vector, chunks=(chunk,) * 40, accounting=COST)
    turns = 0

    async def run(on_event: OnEvent) -> DocumentEmbedding:
        on_event(ChunksReady(chunks=found.chunks))
        return found

    async def send(event: Event) -> None:
        sleep(0.002)  # it is written

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def stream() -> None:
        counting = asyncio.create_task(count())
        await stream_events(run, send, timeout_s=60, result_model="default")
        counting.cancel()

    asyncio.run(stream())
    assert turns > 10
