"""Models that do not pool answer with the states of tokens, of which an engine has room for few."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from engine.async_engine import AsyncEngine
from engine.config import EngineConfig
from engine.errors import (
    InvalidInput,
    TextTooLong,
)
from engine.model.embedding_model import EmbeddingModel, load_model
from engine.types import EmbedOptions
from tests.engine.serving import serve

if TYPE_CHECKING:
    from tests.conftest import WriteCheckpoint


def test_states_of_a_model_that_does_not_pool_are_bounded(
    write_checkpoint: WriteCheckpoint,
) -> None:
    model = load_model(str(write_checkpoint("bert", pooling="none")))

    async def work(engine: AsyncEngine) -> None:
        [found] = await engine.embed(["the quick brown fox"])
        assert found.vector.ndim == 2
        with pytest.raises(TextTooLong) as caught:
            await engine.embed(["the quick brown fox"] * 12)
        assert (caught.value.code, caught.value.limit) == ("too_many_token_states", 40)

    config = EngineConfig(device="cpu", max_token_states=40)
    serve([model], work, config=config)


@pytest.mark.parametrize("limit", [3, 5])
def test_a_model_that_does_not_pool_starts_with_room_for_few_states(
    limit: int, write_checkpoint: WriteCheckpoint
) -> None:
    model = load_model(str(write_checkpoint("bert", pooling="none")))

    async def work(engine: AsyncEngine) -> None:
        assert engine.ready
        [found] = await engine.embed(["fox"], options=EmbedOptions(truncate="end", max_tokens=3))
        assert len(found.vector) == 3
        with pytest.raises(TextTooLong) as caught:
            await engine.embed(["the quick brown fox jumps"])
        assert caught.value.limit == limit

    serve([model], work, config=EngineConfig(device="cpu", max_token_states=limit))


def test_a_model_that_does_not_pool_needs_room_for_one_token(
    write_checkpoint: WriteCheckpoint, default_model: EmbeddingModel
) -> None:
    config = EngineConfig(device="cpu", max_token_states=2)
    bare = load_model(str(write_checkpoint("bert", pooling="none")))
    with pytest.raises(InvalidInput) as caught:
        AsyncEngine([default_model, bare], config=config)
    found = caught.value
    assert (found.param, found.limit, found.actual) == ("max_token_states", 3, 2)
    assert bare.name in str(found)
