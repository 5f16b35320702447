from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from engine.engine import Engine
from engine.living_types import LivingEmbedding
from tests.engine.living.texts import CHUNKS, TEXT
from tests.engine.small_models import calibrated

if TYPE_CHECKING:
    from tests.conftest import WriteCheckpoint


@pytest.fixture(scope="module")
def engine(write_checkpoint: WriteCheckpoint) -> Engine:
    return Engine(calibrated(write_checkpoint("bert"), block_size=64, num_sinks=(1, 1)))


@pytest.fixture(scope="module")
def first(engine: Engine) -> LivingEmbedding:
    """The document as it was first read, for tests of what comes after."""
    return engine.embed_document(TEXT, chunks=CHUNKS, record=True)
