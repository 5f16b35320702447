"""A folder to be indexed, and the commands `lln index` and `lln search`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from service.cli.__main__ import main
from tests.service.index.folder import PAGES, Run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in PAGES.items():
        file = tmp_path / "docs" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path / "docs"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], without_settings: None) -> Run:
    """A command's lines of JSON, or its one line of complaint if it fails."""

    def call(*arguments: str | Path) -> Any:
        code = main([*map(str, arguments), "--json"])
        told = capsys.readouterr()
        if code:
            return told.err.splitlines()[-1]
        return [json.loads(line) for line in told.out.splitlines()]

    return call
