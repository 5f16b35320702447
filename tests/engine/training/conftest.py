"""What tests of training share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engine.training import distill, trainer


@pytest.fixture(scope="module")
def little_watched() -> Iterator[None]:
    """Measuring attention on the usual text takes longer than the few steps of a test's run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "_WATCHED_TOKENS", 64)
        yield


@pytest.fixture(scope="module")
def without_pictures() -> Iterator[None]:
    """Nor are a run's curves drawn, as without matplotlib."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distill, "write_curves", lambda _: None)
        yield
