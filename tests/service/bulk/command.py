"""What tests of `lln embed --from` share."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine import Engine

Run = Callable[..., Any]

TEXTS = [
    "the quick brown fox",
    "jumps over the lazy dog",
    "seven wizards box",
    "attention over long documents",
]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def expected(model: str) -> Any:
    with Engine.load(model) as engine:
        return engine.embed(TEXTS)
