"""Pieces of a part: what a worker sends, and what is kept until the part is whole.

A piece goes to the end of its part's file, with its length and a checksum before it. A file whose
writer was killed may end within a piece: it is cut after the last whole one. Pieces do not wait for
the disk: a power cut costs those of the parts that are under way, and checksums tell which are
whole.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from engine.types import Vector
from service.bulk.rows import BadRow, EmbeddedRow, InputRow, VectorRow, cost_of


@dataclass(frozen=True, kw_only=True)
class Part:
    """Consecutive rows that are written together."""

    number: int
    digest: str
    rows: Sequence[InputRow]

    @property
    def num_bytes(self) -> int:
        return sum(row.num_bytes for row in self.rows)

    def without(self, pieces: Sequence[Piece]) -> Iterator[Stretch]:
        """The rows that are in none of these pieces."""
        first = 0
        for start, end in sorted((piece.first, piece.end) for piece in pieces):
            if start > first:
                yield self._stretch(first, start)
            first = end
        if first < len(self.rows):
            yield self._stretch(first, len(self.rows))

    def _stretch(self, first: int, end: int) -> Stretch:
        return Stretch(part=self.number, digest=self.digest, first=first, rows=self.rows[first:end])


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """Rows of a part that one worker is given."""

    part: int
    digest: str  # of the part
    first: int
    rows: Sequence[InputRow]

    @property
    def end(self) -> int:
        return self.first + len(self.rows)

    @property
    def cost(self) -> int:
        return sum(map(cost_of, self.rows))

    def after(self, num_rows: int) -> Stretch:
        return replace(self, first=self.first + num_rows, rows=self.rows[num_rows:])

    def cut(self, max_cost: int) -> tuple[Stretch, Stretch | None]:
        """The rows at the front that cost at most `max_cost`, one row at least, and the others."""
        cost = 0
        for at, row in enumerate(self.rows):
            cost += cost_of(row)
            if at and cost > max_cost:
                return replace(self, rows=self.rows[:at]), self.after(at)
        return self, None


@dataclass(frozen=True, kw_only=True)
class Piece:
    """What became of consecutive rows of a part, as it is written."""

    number: int  # of the part
    digest: str  # of the part
    first: int
    num_rows: int
    num_bytes: int  # of the rows
    texts: int
    bad: int
    tokens: int
    vectors: Vector
    lines: bytes
    bad_lines: bytes

    @property
    def end(self) -> int:
        return self.first + self.num_rows


def embedded_piece(stretch: Stretch, first: int, rows: Sequence[EmbeddedRow], dim: int) -> Piece:
    """What became of rows of a stretch, from its row `first` on."""
    bad = [row for row in rows if isinstance(row, BadRow)]
    texts = [row for row in rows if not isinstance(row, BadRow)]
    found = [vector for text in texts for vector in text]
    matrix = np.empty((len(found), dim), np.float32)
    for at, row in enumerate(found):
        matrix[at] = row.vector
    return Piece(
        number=stretch.part,
        digest=stretch.digest,
        first=stretch.first + first,
        num_rows=len(rows),
        num_bytes=sum(row.num_bytes for row in stretch.rows[first : first + len(rows)]),
        texts=len(texts),
        bad=len(bad),
        tokens=sum(text[0].tokens_embedded for text in texts if text),
        vectors=matrix,
        lines=b"".join(json.dumps(_vector_line(row)).encode() + b"\n" for row in found),
        bad_lines=b"".join(json.dumps(_bad_line(row)).encode() + b"\n" for row in bad),
    )


_PLAIN = ("digest", "first", "num_rows", "num_bytes", "texts", "bad", "tokens")


def append_piece(path: Path, piece: Piece) -> None:
    payload = (piece.vectors.tobytes(), piece.lines, piece.bad_lines)
    header = {name: getattr(piece, name) for name in _PLAIN} | {
        "sizes": [len(one) for one in payload]
    }
    line = json.dumps(header).encode()
    with path.open("ab") as file:
        file.write(b"".join((b"%08x " % _checksum(line, *payload), line, b"\n", *payload)))


def read_pieces(path: Path, part: Part, dim: int) -> list[Piece]:
    """The whole pieces of these very rows, each row in one. What comes after them is cut off."""
    found: list[Piece] = []
    rows: set[int] = set()
    try:
        file = path.open("r+b")
    except FileNotFoundError:
        return found
    with file:
        end = 0
        while (piece := _read(file, part, dim)) is not None:
            own = range(piece.first, piece.end)
            if piece.end > len(part.rows) or not rows.isdisjoint(own):
                break
            rows.update(own)
            found.append(piece)
            end = file.tell()
        file.truncate(end)
    return found


def _read(file: BinaryIO, part: Part, dim: int) -> Piece | None:
    """The next piece; None at the end, or where what follows is not one of this part."""
    checksum, _, line = file.readline().rstrip(b"\n").partition(b" ")
    try:
        header: dict[str, Any] = json.loads(line)
        sizes = header.pop("sizes")
        payload = [file.read(size) for size in sizes]
        if int(checksum, 16) != _checksum(line, *payload) or header["digest"] != part.digest:
            return None
        numbers, lines, bad_lines = payload
        vectors = np.frombuffer(numbers, np.float32).reshape(-1, dim)
        return Piece(
            number=part.number, vectors=vectors, lines=lines, bad_lines=bad_lines, **header
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _checksum(*payload: bytes) -> int:
    found = 0
    for one in payload:
        found = zlib.crc32(one, found)
    return found


def _vector_line(row: VectorRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "chunk": row.chunk,
        "start": row.characters.start,
        "end": row.characters.end,
        "tokens": row.tokens,
        "tokens_embedded": row.tokens_embedded,
        "truncated": row.dropped is not None,
        "dropped_start": None if row.dropped is None else row.dropped.start,
        "dropped_end": None if row.dropped is None else row.dropped.end,
        "kept": dict(row.kept),
    }


def _bad_line(row: BadRow) -> dict[str, Any]:
    return {"id": row.id, "code": row.code, "reason": row.reason}
