"""Pieces of a part: kept as they come, cut where a kill cut them, put together to the same part."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.types import Span
from service.bulk.parts import Parts, split
from service.bulk.pieces import Part, Piece, Stretch, embedded_piece
from service.bulk.rows import BadRow, EmbeddedRow, InputRow, TextRow, VectorRow

DIM = 3
SLOW_MACHINES_TOO = settings(
    deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow]
)


def part_of(num_rows: int, word: str = "fox") -> Part:
    rows: list[InputRow] = [TextRow(id=n, text=f"{word} {n}", num_bytes=n) for n in range(num_rows)]
    for number in range(2, num_rows, 5):
        rows[number] = BadRow(id=number, code="null_text", reason="null", num_bytes=1)
    [part] = split(rows)
    return part


def result(row: InputRow) -> EmbeddedRow:
    """A vector of each text, two of every third: chunks."""
    if isinstance(row, BadRow):
        return row
    assert isinstance(row.id, int)
    return [
        VectorRow(
            id=row.id,
            chunk=chunk,
            characters=Span(0, len(row.text)),
            tokens=5,
            tokens_embedded=5,
            dropped=None,
            kept={},
            vector=np.arange(row.id, row.id + DIM, dtype=np.float32),
        )
        for chunk in range(1 + (row.id % 3 == 0))
    ]


def pieces_of(part: Part, ends: Sequence[int]) -> list[Piece]:
    [stretch] = part.without([])
    edges = [0, *ends, len(part.rows)]
    return [
        embedded_piece(stretch, start, [result(row) for row in part.rows[start:end]], DIM)
        for start, end in pairwise(edges)
        if end > start
    ]


def finished(folder: Path, part: Part, pieces: Sequence[Piece]) -> dict[str, bytes]:
    folder.mkdir(exist_ok=True)
    parts = Parts(folder, DIM)
    for piece in pieces:
        parts.keep(piece)
    parts.finish(part)
    found = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert sorted(found) == ["000000.jsonl", "000000.npy"]
    header = parts.header(0)
    assert header is not None
    assert header.digest == part.digest
    return found


@SLOW_MACHINES_TOO
@given(st.lists(st.integers(0, 23), max_size=5), st.randoms())
def test_pieces_in_any_order_make_the_same_part(
    tmp_path_factory: pytest.TempPathFactory, ends: list[int], random: object
) -> None:
    part = part_of(23)
    folder = tmp_path_factory.mktemp("parts")
    pieces = pieces_of(part, sorted(ends))
    random.shuffle(pieces)  # type: ignore[attr-defined]
    whole = finished(folder / "whole", part, pieces_of(part, []))
    assert finished(folder / "pieces", part, pieces) == whole


def test_a_file_that_ends_anywhere_goes_on_after_its_last_whole_piece(tmp_path: Path) -> None:
    part = part_of(7)
    pieces = pieces_of(part, [2, 3])
    work = tmp_path / "work"
    work.mkdir()
    path = work / "000000.begun"
    parts = Parts(work, DIM)
    ends = [0]
    for piece in pieces:
        parts.keep(piece)
        ends.append(path.stat().st_size)
    written = path.read_bytes()
    near_ends = {end + by for end in ends for by in (-1, 0, 1)}
    for size in sorted((near_ends | set(range(0, ends[-1], 37))) & set(range(ends[-1]))):
        path.write_bytes(written[:size])
        kept = parts.begun(part)
        number = sum(end <= size for end in ends[1:])
        assert [piece.first for piece in kept] == [piece.first for piece in pieces[:number]]
        assert path.stat().st_size == ends[number]
        assert sum(len(left.rows) for left in part.without(kept)) == 7 - [0, 2, 3, 7][number]
    assert finished(work, part, pieces[2:]) == finished(tmp_path / "whole", part, pieces)


@pytest.mark.parametrize("at", [0, 5, 40, -1])
def test_a_damaged_piece_is_not_taken_for_one(tmp_path: Path, at: int) -> None:
    part = part_of(7)
    parts = Parts(tmp_path, DIM)
    parts.keep(pieces_of(part, [])[0])
    path = tmp_path / "000000.begun"
    damaged = bytearray(path.read_bytes())
    damaged[at] ^= 1
    path.write_bytes(damaged)
    assert parts.begun(part) == []
    assert path.stat().st_size == 0


def test_pieces_of_other_rows_or_of_rows_that_are_there_do_not_count(tmp_path: Path) -> None:
    part = part_of(7)
    parts = Parts(tmp_path, DIM)
    first, second = pieces_of(part, [3])
    parts.keep(first)
    assert parts.begun(part_of(7, "dog")) == []
    for piece in (first, first, second):
        parts.keep(piece)
    assert [piece.end for piece in parts.begun(part)] == [3]


def test_what_is_left_of_a_part(tmp_path: Path) -> None:
    part = part_of(9)
    pieces = pieces_of(part, [2, 4, 8])
    left = list(part.without([pieces[2], pieces[0]]))
    assert [(one.first, len(one.rows)) for one in left] == [(2, 2), (8, 1)]
    assert list(part.without(pieces)) == []


def test_a_stretch_is_cut_by_cost() -> None:
    stretch = Stretch(
        part=0, digest="", first=4, rows=[TextRow(id=n, text="x" * 40) for n in range(5)]
    )
    front, rest = stretch.cut(60)  # a row costs 26
    assert rest is not None
    assert [(one.first, len(one.rows)) for one in (front, rest)] == [(4, 2), (6, 3)]
    assert stretch.cut(1)[0].rows == stretch.rows[:1], "a row is not cut"
    assert stretch.cut(stretch.cost) == (stretch, None)
