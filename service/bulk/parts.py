"""What a job has done so far: a pair of files for each stretch of rows.

The vectors are written first and the rows after them, each as a whole. A part whose rows are there
is done, and it counts only for input rows with the same digest.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engine.types import Vector
from service.bulk.rows import BadRow, EmbeddedRow, VectorRow
from service.files import whole_file


@dataclass(frozen=True, kw_only=True)
class PartHeader:
    """The first line of a part's rows."""

    digest: str  # of the input rows
    texts: int
    vectors: int
    bad: int
    tokens: int


class Parts:
    """The parts of one job, by number from 0."""

    def __init__(self, folder: Path, dim: int) -> None:
        self._folder = folder
        self._dim = dim

    def header(self, number: int) -> PartHeader | None:
        """The part's header if the part is there and whole."""
        try:
            with self._rows_path(number).open(encoding="utf-8") as file:
                header = PartHeader(**json.loads(file.readline()))
            vectors = self.vectors(number)
        except (OSError, ValueError, TypeError):
            return None
        return header if vectors.shape == (header.vectors, self._dim) else None

    def write(self, number: int, digest: str, rows: Sequence[EmbeddedRow]) -> PartHeader:
        bad = [row for row in rows if isinstance(row, BadRow)]
        texts = [row for row in rows if not isinstance(row, BadRow)]
        found = [vector for text in texts for vector in text]
        header = PartHeader(
            digest=digest,
            texts=len(texts),
            vectors=len(found),
            bad=len(bad),
            tokens=sum(text[0].tokens_embedded for text in texts if text),
        )
        matrix = np.empty((len(found), self._dim), np.float32)
        for at, row in enumerate(found):
            matrix[at] = row.vector
        with whole_file(self._vectors_path(number)) as file:
            np.save(file, matrix)
        with whole_file(self._rows_path(number)) as file:
            for line in (asdict(header), *map(_vector_line, found), *map(_bad_line, bad)):
                file.write(json.dumps(line).encode() + b"\n")
        return header

    def rows(self, number: int) -> Iterator[dict[str, Any]]:
        """What the output says of each vector, in the order of the vectors."""
        header, lines = self._lines(number)
        yield from lines[: header.vectors]

    def bad_rows(self, number: int) -> Iterator[dict[str, Any]]:
        header, lines = self._lines(number)
        yield from lines[header.vectors :]

    def vectors(self, number: int) -> Vector:
        vectors: Vector = np.load(self._vectors_path(number))
        return vectors

    def _lines(self, number: int) -> tuple[PartHeader, list[dict[str, Any]]]:
        with self._rows_path(number).open(encoding="utf-8") as file:
            header = PartHeader(**json.loads(file.readline()))
            return header, [json.loads(line) for line in file]

    def _rows_path(self, number: int) -> Path:
        return self._folder / f"{number:06}.jsonl"

    def _vectors_path(self, number: int) -> Path:
        return self._folder / f"{number:06}.npy"


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
