"""The chunks of a document's segments. No chunk goes beyond its segment."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from engine.living.parts import Part
from engine.steps import Steps
from engine.text.chunking import ChunkSpan, Source, check_count, chunk_spans, plan_chunks
from engine.text.encoded import Encoded
from engine.text.headings.sections import sections
from engine.types import Chunking, ChunkPlan, HeadingFormat, HeadingPlan


def with_chunks(parts: Sequence[Part], text: str, chunking: Chunking | None) -> Steps[list[Part]]:
    """The parts with the chunks of those to be read. The format of headings must be known."""
    if chunking is None:
        return list(parts)
    evens_out = len(parts) > 1  # one segment has the chunks of a document without a record
    headings = None
    if isinstance(chunking, HeadingPlan):
        headings = _Headings.of(text, chunking.format)
    found: list[Part] = []
    count = 0
    for part in parts:
        if part.ids is not None:
            part = part._replace(
                chunks=tuple(_chunks_of(part, text, chunking, evens_out=evens_out))
            )
            yield
        if headings is not None:
            part = part._replace(chunks=tuple(_headed(part, headings)))
        found.append(part)
        count += len(part.chunks)
    check_count(count)
    return found


def _chunks_of(part: Part, text: str, chunking: Chunking, *, evens_out: bool) -> list[ChunkSpan]:
    assert part.ids is not None
    assert part.offsets is not None
    own = text[part.characters.start : part.characters.end]
    offsets = part.offsets
    encoded = Encoded(part.ids, 0, 0, read_offsets=lambda: offsets)
    if isinstance(chunking, ChunkPlan) and evens_out:
        chunking = _evened(chunking, encoded.num_content)
    return chunk_spans(encoded, chunking, Source(own, len(own)))


def _evened(plan: ChunkPlan, num_tokens: int) -> ChunkPlan:
    """As many chunks of the segment, of about the same size.

    Every segment would otherwise end with what is left over. A chunk of a few tokens moves many
    times as far as others when the rest of the document changes: their bound does not hold for it.
    """
    count = len(plan_chunks(num_tokens, plan))
    if count < 2:
        return plan
    return replace(plan, tokens=-(-(num_tokens + (count - 1) * plan.overlap) // count))


class _Headings(NamedTuple):
    """Where the document's sections begin, and the headings above each."""

    starts: list[int]
    paths: list[tuple[str, ...]]

    @classmethod
    def of(cls, text: str, form: HeadingFormat) -> _Headings:
        parts = sections(text, form)
        return cls([part.characters.start for part in parts], [part.headings for part in parts])

    def above(self, character: int) -> tuple[str, ...]:
        return self.paths[bisect_right(self.starts, character) - 1]


def _headed(part: Part, headings: _Headings) -> Iterator[ChunkSpan]:
    """The part's chunks with the headings above them, which may stand in earlier segments."""
    for chunk in part.chunks:
        start = part.characters.start + chunk.characters.start
        yield chunk._replace(headings=headings.above(start))
