"""What a job has to do and has done so far, in parts: a pair of files for each stretch of rows.

The vectors are written first and the rows after them, each as a whole. A part whose rows are there
is done, and it counts only for input rows with the same digest.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engine.types import Vector
from service.bulk.balance import cut, estimated_cost
from service.bulk.rows import BadRow, EmbeddedRow, InputRow, TextRow, VectorRow, digest_of
from service.files import whole_file

PART_TOKENS = 50_000
PART_ROWS = 512
"""A part has at most so many rows, and so many tokens by estimate: a worker that is killed repeats
at most one."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """Consecutive rows that are embedded and written together."""

    number: int
    digest: str
    rows: Sequence[InputRow]

    @property
    def cost(self) -> int:
        return sum(map(_cost, self.rows))

    @property
    def num_bytes(self) -> int:
        return sum(row.num_bytes for row in self.rows)


def split(rows: Iterable[InputRow]) -> Iterator[Part]:
    """Rows in parts. Where a part ends depends on the rows alone."""
    for number, part in enumerate(cut(rows, _cost, max_cost=PART_TOKENS, max_items=PART_ROWS)):
        yield Part(number=number, digest=digest_of(part), rows=part)


def _cost(row: InputRow) -> int:
    return estimated_cost(row.text) if isinstance(row, TextRow) else 0


@dataclass(frozen=True, kw_only=True)
class PartHeader:
    """The first line of a part's rows."""

    digest: str  # of the input rows
    texts: int
    vectors: int
    bad: int
    tokens: int


@dataclass(frozen=True, kw_only=True)
class EmbeddedPart:
    """A part as it is written: what a worker sends."""

    number: int
    header: PartHeader
    vectors: Vector
    lines: bytes


def embedded_part(part: Part, rows: Sequence[EmbeddedRow], dim: int) -> EmbeddedPart:
    bad = [row for row in rows if isinstance(row, BadRow)]
    texts = [row for row in rows if not isinstance(row, BadRow)]
    found = [vector for text in texts for vector in text]
    header = PartHeader(
        digest=part.digest,
        texts=len(texts),
        vectors=len(found),
        bad=len(bad),
        tokens=sum(text[0].tokens_embedded for text in texts if text),
    )
    matrix = np.empty((len(found), dim), np.float32)
    for at, row in enumerate(found):
        matrix[at] = row.vector
    lines = (asdict(header), *map(_vector_line, found), *map(_bad_line, bad))
    return EmbeddedPart(
        number=part.number,
        header=header,
        vectors=matrix,
        lines=b"".join(json.dumps(line).encode() + b"\n" for line in lines),
    )


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

    def write(self, part: EmbeddedPart) -> None:
        with whole_file(self._vectors_path(part.number)) as file:
            np.save(file, part.vectors)
        with whole_file(self._rows_path(part.number)) as file:
            file.write(part.lines)

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
