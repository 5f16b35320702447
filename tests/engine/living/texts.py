"""A document for records, of several segments."""

from __future__ import annotations

from engine.types import ChunkPlan

CHUNKS = ChunkPlan(tokens=200)
PARAGRAPH = "the quick brown fox jumps over number {} and {} while seven wizards box {}."
TEXT = "\n\n".join(
    " ".join(PARAGRAPH.format(part, line, part * line) for line in range(4)) for part in range(60)
)
