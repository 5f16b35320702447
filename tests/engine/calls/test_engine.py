"""The engine for servers: many callers, one device thread, every one with its own answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import numpy as np
import pytest

from engine.async_engine import AsyncEngine
from engine.benchmarks.encoder import EncoderPlan, EncoderRow, encoder_rows
from engine.config import EngineConfig
from engine.engine import Engine
from engine.errors import (
    InvalidInput,
    ModelNotFound,
)
from engine.model.embedding_model import EmbeddingModel, load_model
from engine.types import ChunkPlan
from tests.engine.serving import serve


def test_many_callers_get_their_own_vectors(
    shipped_models: dict[str, EmbeddingModel],
    default_model: EmbeddingModel,
    real_texts: list[str],
) -> None:
    texts = real_texts[:30]

    async def work(engine: AsyncEngine) -> list[np.ndarray]:
        answers = await asyncio.gather(*(engine.embed([text]) for text in texts))
        return [answer[0].vector for answer in answers]

    found = np.stack(serve(shipped_models.values(), work))
    np.testing.assert_allclose(found, Engine(default_model).embed(texts), atol=2e-6)


def test_documents_equal_those_of_the_plain_engine(
    shipped_models: dict[str, EmbeddingModel], default_model: EmbeddingModel, long_text: str
) -> None:
    text, plan = long_text[:6_000], ChunkPlan(tokens=200)
    served = serve(shipped_models.values(), lambda engine: engine.embed_document(text, chunks=plan))
    plain = Engine(default_model).embed_document(text, chunks=plan)
    np.testing.assert_allclose(served.vector, plain.vector, atol=2e-6)
    assert [chunk.characters for chunk in served.chunks] == [c.characters for c in plain.chunks]
    assert served.accounting.compute_s > 0


def test_a_limit_below_the_length_of_a_sentence() -> None:
    config = EngineConfig(device="cpu", max_text_tokens=8)
    limited = load_model("default", config=config)
    found = serve([limited], lambda engine: engine.embed(["a text"]), config=config)
    assert found[0].accounting.tokens == 4


def test_models_by_name(shipped_models: dict[str, EmbeddingModel]) -> None:
    async def work(engine: AsyncEngine) -> None:
        assert engine.ready
        assert list(engine.models) == list(shipped_models)
        assert engine.resolve(None).attention == ("lln_diag",) * 6
        with pytest.raises(ModelNotFound) as caught:
            await engine.embed(["a text"], model="text-embedding-3-small")
        assert caught.value.actual == "text-embedding-3-small"

    serve(shipped_models.values(), work)


def test_tokenizing(shipped_models: dict[str, EmbeddingModel]) -> None:
    found = serve(shipped_models.values(), lambda engine: engine.tokenize("Café au lait"))
    assert found.tokens == ("[CLS]", "cafe", "au", "lai", "##t", "[SEP]")
    assert found.offsets[1].tolist() == [0, 4]
    assert list(found.each())[1:3] == [(found.ids[1], "cafe", 0, 4), (found.ids[2], "au", 5, 7)]


def test_a_benchmark_lets_texts_run_in_between(
    shipped_models: dict[str, EmbeddingModel],
) -> None:
    def rows_of(engine: AsyncEngine, *lengths: int) -> AsyncIterator[EncoderRow]:
        kinds = ["softmax", "lln_diag"]
        return engine.measure(
            lambda model: encoder_rows(EncoderPlan.checked(lengths, kinds, 2, model))
        )

    async def work(engine: AsyncEngine) -> None:
        async def measured() -> list[EncoderRow]:
            return [row async for row in rows_of(engine, 64, 300)]

        running = asyncio.create_task(measured())
        await engine.embed(["in between"])
        assert not running.done()
        rows = await running
        assert [(row.tokens, row.attention) for row in rows] == [
            (64, "softmax"),
            (64, "lln_diag"),
            (300, "softmax"),
            (300, "lln_diag"),
        ]
        assert all(row.tokens_per_s > 0 for row in rows)
        with pytest.raises(InvalidInput):
            await anext(rows_of(engine, 0))

    serve(shipped_models.values(), work)
