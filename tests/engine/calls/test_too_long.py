"""The error of a text over the limit, from every kind of call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from engine.async_engine import AsyncEngine
from engine.attention_types import MapOptions
from engine.config import EngineConfig
from engine.errors import TextTooLong
from engine.model.embedding_model import load_models


def test_only_calls_that_can_truncate_advise_it(minilm_folder: Path) -> None:
    config = EngineConfig(max_text_tokens=50, max_softmax_text_tokens=50)
    models = load_models([str(minilm_folder)], config=config)
    too_long = "word " * 60

    async def messages() -> dict[str, str]:
        async with AsyncEngine(models, config=config) as engine:
            calls: dict[str, Callable[[], Awaitable[object]]] = {
                "embed": lambda: engine.embed([too_long]),
                "diagnose": lambda: engine.diagnose(too_long),
                "map": lambda: engine.attention_map(too_long, options=MapOptions(layer=0, head=0)),
                "open": lambda: engine.keep_open(too_long),
            }
            found = {}
            for name, call in calls.items():
                with pytest.raises(TextTooLong) as caught:
                    await call()
                found[name] = caught.value.message
                assert caught.value.limit == 50
            return found

    found = asyncio.run(messages())
    assert found.pop("embed").endswith("shorten it, or allow it to be cut (truncate)")
    assert all(message.endswith("; shorten it") for message in found.values()), found
