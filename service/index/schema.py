"""The tables of an index, and what it is made with."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Self

from engine.types import Context

VERSION = 3
"""The version of the tables. An index of another version is rebuilt."""

_WORDS = (
    "porter unicode61 remove_diacritics 2 categories 'L* N* Co Mn Mc' separators '\ufe0e\ufe0f'"
)
"""Marks are of the word that they stand in: vowels are marks in Hindi and Thai. Those that say how
an emoji looks are not: a word may follow it at once."""

TABLES = f"""
CREATE TABLE recipe (content TEXT NOT NULL);
-- Raised by every change, so that readers know when what they hold in memory is old.
CREATE TABLE changes (number INTEGER NOT NULL);
INSERT INTO changes VALUES (0);
CREATE TABLE files (
    id INTEGER PRIMARY KEY,
    path TEXT NOT NULL UNIQUE,
    size INTEGER NOT NULL,
    mtime_ns INTEGER NOT NULL,
    sha256 TEXT NOT NULL,
    title TEXT,
    text TEXT NOT NULL,
    page_starts TEXT NOT NULL,
    tokens INTEGER NOT NULL,
    -- Why the file has no text here; empty if it has.
    problem TEXT NOT NULL
);
CREATE INDEX files_by_content ON files (sha256);
CREATE TABLE chunks (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    file INTEGER NOT NULL REFERENCES files (id),
    number INTEGER NOT NULL,
    first INTEGER NOT NULL,
    last INTEGER NOT NULL,
    headings TEXT NOT NULL,
    vector BLOB NOT NULL,
    UNIQUE (file, number)
);
-- The words of each chunk, without the text: that stands in files.
CREATE VIRTUAL TABLE words USING fts5(
    title, headings, text, content = '', tokenize = "{_WORDS}"
);
"""

RECORDS = """
CREATE TABLE IF NOT EXISTS records (
    file INTEGER PRIMARY KEY,
    -- Of the file's content, as in files.
    sha256 TEXT NOT NULL,
    record BLOB NOT NULL
)
"""
"""What updates of documents start from. Older indexes have no such table."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What decides an index's vectors. All of its files are read with one recipe."""

    folder: str
    """The folder that was indexed, as an absolute path."""

    model: str
    revision: str
    calibration: str | None
    dim: int
    context: Context
    chunk_tokens: int
    records: bool = False
    """Whether long documents are read in segments and updated from their records."""

    dtype: str | None = None
    """The precision of the vectors. Older indexes do not have it."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, content: str) -> Self:
        return cls(**json.loads(content))

    def differences(self, other: Recipe) -> dict[str, tuple[object, object]]:
        """What the two say differently, by name. A precision that was not kept fits any."""
        mine, theirs = asdict(self), asdict(other)
        if None in (self.dtype, other.dtype):
            theirs["dtype"] = mine["dtype"]
        return {name: (mine[name], theirs[name]) for name in mine if mine[name] != theirs[name]}
