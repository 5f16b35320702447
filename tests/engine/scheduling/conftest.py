"""What tests of the scheduler share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine.scheduling.line import Line


@pytest.fixture
def line() -> Iterator[Line]:
    line = Line()
    yield line
    line.loop.close()
