"""The chunks of a document's segments. No chunk goes beyond its segment."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from engine.living.parts import Part
from engine.steps import Steps
from engine.text.chunking import ChunkSpan, Source, check_count, chunk_spans
from engine.text.headings import detect_format, sections
from engine.text.tokenizer import Encoded
from engine.types import Chunking, HeadingFormat, HeadingPlan


def with_chunks(parts: Sequence[Part], text: str, chunking: Chunking | None) -> Steps[list[Part]]:
    """The parts with the chunks of those to be read."""
    if chunking is None:
        return list(parts)
    headings = None
    if isinstance(chunking, HeadingPlan):
        headings = _Headings.of(text, chunking.format)
    found: list[Part] = []
    count = 0
    for part in parts:
        if part.ids is not None:
            part = part._replace(chunks=tuple(_chunks_of(part, text, chunking, headings)))
            yield
        if headings is not None:
            part = part._replace(chunks=tuple(_headed(part, headings)))
        found.append(part)
        count += len(part.chunks)
    check_count(count)
    return found


def _chunks_of(
    part: Part, text: str, chunking: Chunking, headings: _Headings | None
) -> list[ChunkSpan]:
    assert part.ids is not None
    assert part.offsets is not None
    own = text[part.characters.start : part.characters.end]
    offsets = part.offsets
    encoded = Encoded(part.ids, 0, 0, read_offsets=lambda: offsets)
    if isinstance(chunking, HeadingPlan) and headings is not None:
        chunking = replace(chunking, format=headings.format)
    return chunk_spans(encoded, chunking, Source(own, len(own)))


class _Headings(NamedTuple):
    """Where the document's sections begin, and the headings above each."""

    format: HeadingFormat
    starts: list[int]
    paths: list[tuple[str, ...]]

    @classmethod
    def of(cls, text: str, form: HeadingFormat) -> _Headings:
        found = detect_format(text) if form == "auto" else form
        parts = sections(text, found)
        return cls(
            found, [part.characters.start for part in parts], [part.headings for part in parts]
        )

    def above(self, character: int) -> tuple[str, ...]:
        return self.paths[bisect_right(self.starts, character) - 1]


def _headed(part: Part, headings: _Headings) -> Iterator[ChunkSpan]:
    """The part's chunks with the headings above them, which may stand in earlier segments."""
    for chunk in part.chunks:
        start = part.characters.start + chunk.characters.start
        yield chunk._replace(headings=headings.above(start))
