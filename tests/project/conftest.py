"""What a deployment is held against: the settings of the server that it starts."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TypeAlias

import pytest

from service.environment import load_settings
from service.settings import PREFIX, Settings

STOP_MARGIN_S = 5
"""What a stop may take beyond the drain: the last answers, and the end of the process."""

SettingsOf: TypeAlias = Callable[[Mapping[str, str]], Settings]


@pytest.fixture
def settings_of(monkeypatch: pytest.MonkeyPatch) -> SettingsOf:
    """The settings of a server that is given these variables. It refuses unknown names and bad
    values."""

    def load(environment: Mapping[str, str]) -> Settings:
        for name in [name for name in os.environ if name.startswith(PREFIX)]:
            monkeypatch.delenv(name)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        return load_settings()

    return load
