from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from service.cli.__main__ import main
from tests.service.bulk.command import TEXTS, Run


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], without_settings: None) -> Run:
    """A command's JSON, or its one line of complaint if it fails."""

    def call(*arguments: str | Path) -> Any:
        code = main(["embed", *map(str, arguments), "--json"])
        told = capsys.readouterr()
        return told.err.splitlines()[-1] if code else json.loads(told.out)

    return call


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    rows = [{"id": f"doc{n}", "text": text, "year": 2000 + n} for n, text in enumerate(TEXTS)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
