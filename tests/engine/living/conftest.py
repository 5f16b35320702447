from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from engine.engine import Engine
from tests.engine.small_models import calibrated

if TYPE_CHECKING:
    from tests.conftest import WriteCheckpoint


@pytest.fixture
def engine(write_checkpoint: WriteCheckpoint) -> Engine:
    return Engine(calibrated(write_checkpoint("bert"), block_size=64, num_sinks=(1, 1)))
