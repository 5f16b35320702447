"""Documents on a GPU: their chunks, their tokens' states, streams, and records that live on."""

from __future__ import annotations

import asyncio
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.async_engine import AsyncEngine
from engine.engine import Engine
from engine.types import ChunkPlan, Context, DocumentEmbedding
from tests.gpu.device import DEVICE, LEAST_COSINE, MARKS, assert_alike, config, engine, long_text

pytestmark = MARKS

TEXT = long_text()[:24_000]
TITLE = "The Python Language Reference"


def embedded(engine: Engine, context: Context) -> DocumentEmbedding:
    plan = ChunkPlan(tokens=128, overlap=16, context=context)
    return engine.embed_document(TEXT, chunks=plan, title=None if context == "late" else TITLE)


@cache
def on_the_cpu(context: Context) -> DocumentEmbedding:
    return embedded(engine("documents", "cpu"), context)


def vectors_of(document: DocumentEmbedding) -> NDArray[np.float32]:
    return np.stack([document.vector, *(chunk.vector for chunk in document.chunks)])


def assert_as_on_the_cpu(found: DocumentEmbedding, context: Context, least: float) -> None:
    wanted = on_the_cpu(context)
    assert [one.tokens for one in found.chunks] == [one.tokens for one in wanted.chunks]
    assert_alike(vectors_of(found), vectors_of(wanted), least, f"{context} chunks")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("context", ["balanced", "late", "one_pass", "linked"])
def test_chunks(context: Context, dtype: str) -> None:
    found = embedded(engine("documents", DEVICE, dtype), context)
    assert_as_on_the_cpu(found, context, LEAST_COSINE[dtype])


def test_chunks_of_a_swept_document() -> None:
    found = embedded(engine("documents", sweep_from=2_048), "late")
    assert_as_on_the_cpu(found, "late", LEAST_COSINE["float32"])


def test_a_document_in_pieces_through_the_asynchronous_engine() -> None:
    async def read() -> DocumentEmbedding:
        async with AsyncEngine.load(["documents"], config=config()) as served:
            stream = served.open_document(
                chunks=ChunkPlan(tokens=128, overlap=16, context="balanced"), title=TITLE
            )
            for start in range(0, len(TEXT), 5_000):
                await stream.feed(TEXT[start : start + 5_000])
            return await stream.finish()

    assert_as_on_the_cpu(asyncio.run(read()), "balanced", LEAST_COSINE["float32"])


def test_token_states() -> None:
    texts = [TEXT[:400], TEXT[400:5_000]]

    async def states(device: str) -> list[NDArray[np.float32]]:
        async with AsyncEngine.load(config=config(device)) as served:
            return [one.vector for one in await served.embed_tokens(texts)]

    for found, wanted in zip(asyncio.run(states(DEVICE)), asyncio.run(states("cpu")), strict=True):
        assert_alike(found, wanted, 1 - 1e-4, "token states")


def test_a_record_that_is_read_on() -> None:
    plan = ChunkPlan(tokens=128)
    short, whole = TEXT[:16_000], TEXT

    def grown_on(device: str) -> NDArray[np.float32]:
        one = engine("documents", device)
        first = one.embed_document(short, chunks=plan, record=True)
        assert first.record is not None
        return vectors_of(one.update_document(first.record, whole))

    assert_alike(grown_on(DEVICE), grown_on("cpu"), 1 - 1e-4, "a document that has grown")
