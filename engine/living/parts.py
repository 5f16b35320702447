"""Divides a document into segments, and finds those that its record holds already."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import NamedTuple

from engine.living.record import DocumentRecord, KeptSegment
from engine.steps import Steps
from engine.text.chunking import ChunkSpan
from engine.text.segments import SegmentKey, key_matches, key_of, segment_at
from engine.text.tokenizer import TextTokenizer
from engine.types import Ids, Offsets, Span, Vector


class Part(NamedTuple):
    """A segment of the document as it is now: kept from the record, or to be read."""

    characters: Span
    key: SegmentKey
    kept: KeptSegment | None = None
    kept_at: int | None = None  # the number of that segment in the record
    chunks: tuple[ChunkSpan, ...] = ()  # tokens and characters from the segment's start
    ids: Ids | None = None  # [content tokens] of a segment to be read
    offsets: Offsets | None = None  # [content tokens, 2] characters from the segment's start
    alone: Vector | None = None  # [chunks, W] of a known segment that is read again

    @property
    def num_content(self) -> int:
        if self.kept is not None:
            return self.kept.num_content
        assert self.ids is not None, "a part is kept or has tokens"
        return len(self.ids)


def parts_of(
    text: str,
    told: str | None,
    tokenizer: TextTokenizer,
    record: DocumentRecord | None,
    read_again: Container[int],
    check: Callable[[int], None],
) -> Steps[list[Part]]:
    """`check` is called with the content tokens so far. It raises to stop reading."""
    # A title given by the caller is read with the first segment. One found in the text is part of
    # that segment, and unchanged if the segment is.
    reads_title = record is not None and record.titles.told != told
    finder = _Finder(text, record)
    parts: list[Part] = []
    start = num_content = 0
    while start < len(text):
        found = finder.find(start)
        kept = None if record is None or found is None else record.segments[found]
        is_asked_for = len(parts) in read_again or (reads_title and not parts)
        if kept is not None and not is_asked_for:
            characters = Span(start, start + kept.num_characters)
            part = Part(characters, kept.key, kept, found, kept.chunks)
        else:
            segment = segment_at(text, start, tokenizer)
            part = Part(
                segment.characters,
                key_of(text, segment),
                ids=segment.ids,
                offsets=segment.offsets,
                # What a passage is alone does not depend on its document.
                alone=None if kept is None or kept.num_sealed else kept.vectors.alone,
            )
            yield
        parts.append(part)
        num_content += part.num_content
        check(num_content)
        start = part.characters.end
    return parts


class _Finder:
    """Finds the segments of a record in a text."""

    def __init__(self, text: str, record: DocumentRecord | None) -> None:
        self._text = text
        self._segments = () if record is None else record.segments
        self._expected = 0

    def find(self, start: int) -> int | None:
        """The number of the record's segment that begins here; first looked for is the one after
        the last that was found."""
        count = len(self._segments)
        for ahead in range(count):
            index = (self._expected + ahead) % count
            key = self._segments[index].key
            if self._has_same_ends(index, start) and key_matches(self._text, start, key):
                self._expected = index + 1
                return index
        return None

    def _has_same_ends(self, index: int, start: int) -> bool:
        """Special tokens stand at a document's ends, in its first and its last segment."""
        is_first, is_last = index == 0, index == len(self._segments) - 1
        ends = start + self._segments[index].num_characters == len(self._text)
        return is_first == (start == 0) and is_last == ends
