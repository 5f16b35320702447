"""A folder of the Batch API, and what runs its batches, without a server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from service.batches.runner import Batches
from service.batches.store import BatchStore
from service.metrics import Metrics
from tests.service.batches.folder import LIMITS, answer_ok


@pytest.fixture
def store(tmp_path: Path) -> Iterator[BatchStore]:
    found = BatchStore(tmp_path / "batches")
    yield found
    found.close()


@pytest.fixture
def batches(store: BatchStore) -> Batches:
    return Batches(store, answer_ok, LIMITS, Metrics().batch_api)
