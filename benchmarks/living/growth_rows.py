"""The rows of growing documents as they are stored: a line a document, vectors in files beside."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

WAYS: Mapping[str, float | None] = {"grown": None, "held at 0.002": 0.002, "held at 0.01": 0.01}
"""How stale a chunk may be that is kept, in each way."""
ORACLE = 0.002
"""What the oracle keeps is never further off than this."""


def vectors_of(file: Path, document: str) -> Path:
    folder = file.with_suffix("")
    folder.mkdir(exist_ok=True)
    return folder / f"{document.replace('/', '_')}.safetensors"


def read_rows(files: Sequence[Path]) -> list[dict[str, Any]]:
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]
