"""What a job has to do and has done so far, in parts: a pair of files for each stretch of rows.

The vectors are written first and the rows after them, each as a whole. A part whose rows are there
is done, and it counts only for input rows with the same digest. Until then its pieces are kept in a
file of their own as they come, so that a kill costs little of a part.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from engine.types import Vector
from service.bulk.balance import cut
from service.bulk.pieces import Part, Piece, append_piece, read_pieces
from service.bulk.rows import InputRow, cost_of, digest_of
from service.files import whole_file

PART_TOKENS = 50_000
PART_ROWS = 512
"""A part has at most this many rows, and this many tokens by estimate."""


def split(rows: Iterable[InputRow]) -> Iterator[Part]:
    """Rows in parts. Where a part ends depends on the rows alone."""
    for number, part in enumerate(cut(rows, cost_of, max_cost=PART_TOKENS, max_items=PART_ROWS)):
        yield Part(number=number, digest=digest_of(part), rows=part)


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

    def begun(self, part: Part) -> list[Piece]:
        """The pieces of a part that is not whole which an earlier run has kept."""
        return read_pieces(self._pieces_path(part.number), part, self._dim)

    def keep(self, piece: Piece) -> None:
        append_piece(self._pieces_path(piece.number), piece)

    def finish(self, part: Part) -> None:
        """Puts the pieces of a part together."""
        pieces = sorted(self.begun(part), key=attrgetter("first"))
        assert sum(piece.num_rows for piece in pieces) == len(part.rows), "each row is in a piece"
        header = PartHeader(
            digest=part.digest,
            texts=sum(piece.texts for piece in pieces),
            vectors=sum(len(piece.vectors) for piece in pieces),
            bad=sum(piece.bad for piece in pieces),
            tokens=sum(piece.tokens for piece in pieces),
        )
        with whole_file(self._vectors_path(part.number)) as file:
            np.save(file, np.concatenate([piece.vectors for piece in pieces]))
        with whole_file(self._rows_path(part.number)) as file:
            file.write(json.dumps(asdict(header)).encode() + b"\n")
            file.writelines(piece.lines for piece in pieces)
            file.writelines(piece.bad_lines for piece in pieces)
        self._pieces_path(part.number).unlink()

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

    def _pieces_path(self, number: int) -> Path:
        return self._folder / f"{number:06}.begun"
