"""What tests of training share."""

from __future__ import annotations

import pytest

from engine.training import trainer


@pytest.fixture
def little_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measuring attention on the usual text takes longer than the few steps of a test's run."""
    monkeypatch.setattr(trainer, "_WATCHED_TOKENS", 64)
