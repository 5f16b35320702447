"""Calls with many vectors finish them in a thread: the event loop has other calls to answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from engine.async_engine import AsyncEngine
from engine.calls import ranking_calls
from engine.execution import results
from engine.execution.results import finish_vectors
from engine.model.embedding_model import EmbeddingModel
from engine.types import EmbedOptions, Span, SpanPlan, Vector
from tests.engine.serving import serve

TEXT = "Otters live by rivers. "


def spans(count: int, alone: float) -> SpanPlan:
    words = [Span(0, 6), Span(7, 11), Span(12, 14), Span(15, 21)]
    return SpanPlan(spans=tuple(words[at % 4] for at in range(count)), alone=alone, opening=0)


CALLS: dict[str, Callable[[AsyncEngine, int], Awaitable[object]]] = {
    "embed": lambda engine, count: engine.embed([TEXT] * count),
    "embed_tokens": lambda engine, count: engine.embed_tokens([TEXT * (count // 5 + 1)]),
    "embed_document": lambda engine, count: engine.embed_document(TEXT, chunks=spans(count, 0)),
    "embed_chunks": lambda engine, count: engine.embed_chunks(TEXT, chunks=spans(count, 1)),
    "rank": lambda engine, count: engine.rank("Where?", [TEXT] * count),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize(("count", "is_here"), [(3, True), (200, False)])
def test_many_vectors_are_finished_off_the_event_loop(
    shallow_model: EmbeddingModel,
    monkeypatch: pytest.MonkeyPatch,
    call: Callable[[AsyncEngine, int], Awaitable[object]],
    count: int,
    is_here: bool,
) -> None:
    ran_on: list[threading.Thread] = []

    def noting(vectors: Vector, options: EmbedOptions) -> Vector:
        ran_on.append(threading.current_thread())
        return finish_vectors(vectors, options)

    for module in (results, ranking_calls):
        monkeypatch.setattr(module, "finish_vectors", noting)
    serve([shallow_model], lambda engine: call(engine, count))
    assert (ran_on[-1] is threading.current_thread()) is is_here


@pytest.mark.parametrize("call", ["embed", "rank"])
def test_many_tiny_texts_let_other_tasks_run(
    shallow_model: EmbeddingModel, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """They are tokenised at once, and none of them waits for room."""
    texts = ["a"] * 1_024

    async def longest_wait(engine: AsyncEngine) -> int:
        """Most pieces that were queued while another task wanted to run."""
        submitted: list[int] = []
        queue = engine._requests

        def counting(*args: Any) -> Any:
            submitted[-1] += 1
            return queue(*args)

        async def beat() -> None:
            while True:
                submitted.append(0)
                await asyncio.sleep(0)

        monkeypatch.setattr(engine, "_requests", counting)
        beating = asyncio.create_task(beat())
        await asyncio.sleep(0)
        await (engine.embed(texts) if call == "embed" else engine.rank("b", texts))
        beating.cancel()
        assert sum(submitted) >= 16
        return max(submitted)

    assert serve([shallow_model], longest_wait) == 1
