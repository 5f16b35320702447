"""Calls of many documents beside other calls."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from engine.async_engine import AsyncEngine
from engine.config import EngineConfig
from engine.scheduling.observer import EngineObserver
from tests.engine.bridge import on_loop
from tests.engine.small_models import calibrated

if TYPE_CHECKING:
    from tests.conftest import WriteCheckpoint

SENTENCE = "the quick brown fox jumps over seven wizards. "


class Read(EngineObserver):
    """How many texts the device has read."""

    def __init__(self) -> None:
        self.count = 0

    def unit_finished(self, *, sequences: int, **others: Any) -> None:
        self.count += sequences


def test_a_text_waits_for_few_documents_of_another_call(write_checkpoint: WriteCheckpoint) -> None:
    model = calibrated(write_checkpoint("bert"), block_size=64, num_sinks=(1, 1))
    documents = [[f"number {number}: {SENTENCE}", SENTENCE] for number in range(200)]

    @on_loop
    async def scenario() -> None:
        read = Read()
        config = EngineConfig(device="cpu", max_batch_sequences=4)
        async with AsyncEngine([model], config=config, observer=read) as engine:
            read.count = 0  # without the texts that warm it up
            call = asyncio.create_task(engine.embed_given_chunks(documents))
            while not read.count:
                await asyncio.sleep(0.001)
            await engine.embed(["a short text"])
            before = read.count
            await call
            assert before < read.count / 10

    scenario()
