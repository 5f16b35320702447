"""Divides a document into segments, finds those that its record holds, and reads in the others."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from engine.errors import InvalidInput
from engine.execution.documents import check_title, title_ids
from engine.execution.inputs import PreparedText, check_input, check_pools, prompt_of
from engine.living.record import DocumentRecord, KeptSegment
from engine.model.embedding_model import EmbeddingModel
from engine.model.segmented_pass import LayerStates, Reading, SinkRows
from engine.model.tiled_pass import block_size, can_tile
from engine.steps import Steps
from engine.text.chunking import (
    MAX_CHUNKS,
    OPENING_TOKENS,
    ChunkSpan,
    Shares,
    Source,
    check_chunking,
    chunk_spans,
    shares_of,
)
from engine.text.headings import detect_format, sections
from engine.text.segments import SegmentKey, key_matches, key_of, segment_at
from engine.text.tokenizer import Encoded, TextTokenizer
from engine.text.truncation import never_truncated, too_long
from engine.types import (
    Chunking,
    EmbedOptions,
    HeadingFormat,
    HeadingPlan,
    Ids,
    Offsets,
    Span,
    SpanPlan,
    Vector,
)


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


@dataclass
class SegmentsRead:
    """What a run leaves behind besides vectors. Set when it ends."""

    states: list[LayerStates] = field(default_factory=list)  # of the segments read
    sinks: tuple[SinkRows, SinkRows] | None = None


@dataclass(frozen=True, kw_only=True)
class SegmentedText(PreparedText):
    """The segments of a document that the device reads, in order."""

    readings: tuple[Reading, ...]  # of all segments
    length: int  # tokens of the document
    first_sinks: SinkRows | None
    last_sinks: SinkRows | None
    ids_of_prompt: Ids
    has_opening: bool  # whether the first span after the whole is the document's opening
    spans_alone: tuple[Span, ...]  # of the spans, those that are read alone too
    read: SegmentsRead = field(default_factory=SegmentsRead)

    def content_rows(self, tokenizer: TextTokenizer) -> Span:
        first, last = self.readings[0], self.readings[-1]
        before = 0 if first.is_kept else tokenizer.num_prefix + self.num_prompt
        after = 0 if last.is_kept else tokenizer.num_suffix
        return Span(before, self.num_embedded - after)

    def prompt_ids(self, tokenizer: TextTokenizer) -> Ids:
        return self.ids_of_prompt

    @property
    def is_tiled(self) -> bool:
        return True

    @property
    def read_alone(self) -> tuple[Span, ...]:
        return self.spans_alone

    @property
    def rows_read(self) -> list[int]:
        """The rows of each segment that is read."""
        return [reading.num_rows for reading in self.readings if not reading.is_kept]


@dataclass(frozen=True, kw_only=True)
class LivingDocument:
    """A document as it is now, with what its record still holds of it."""

    text: str
    options: EmbedOptions
    chunking: Chunking | None
    title: str | None
    shares: Shares
    parts: tuple[Part, ...]
    record: DocumentRecord | None
    num_tokens: int
    num_before: int  # tokens before the first of the text: special ones and those of a prompt
    block_size: int
    segmented: SegmentedText | None  # None if there is nothing to read

    @property
    def num_read(self) -> int:
        return 0 if self.segmented is None else self.segmented.num_embedded


def prepare_living_steps(
    text: str,
    model: EmbeddingModel,
    options: EmbedOptions,
    chunking: Chunking | None,
    *,
    title: str | None = None,
    record: DocumentRecord | None = None,
    read_again: Container[int] = (),
) -> Steps[LivingDocument]:
    """Reads the text as far as the record does not know it. `read_again` are segments of the
    document as it is now that are read although they are known."""
    check_living(text, model, options, chunking, title)
    if record is not None and not _is_of(record, options, chunking):
        record = None
    parts = yield from _parts(text, title, model.tokenizer, record, read_again)
    prompt = _prompt_ids(model, options)
    around = model.tokenizer.num_special + len(prompt)
    num_tokens = sum(part.num_content for part in parts) + around
    if num_tokens > model.info.max_tokens:
        with never_truncated():
            raise too_long(num_tokens, model.info.max_tokens, "text")
    block = block_size(model.encoder, num_tokens)
    if record is not None and not _reads_alike(record, num_tokens, block):
        record = None
        parts = yield from _parts(text, title, model.tokenizer, None, ())
    parts = yield from _with_chunks(parts, text, chunking)
    return _document(text, model, options, chunking, title, parts, record, prompt, num_tokens)


def check_living(
    text: str,
    model: EmbeddingModel,
    options: EmbedOptions,
    chunking: Chunking | None,
    title: str | None,
) -> None:
    """Rejects what no record can be made of."""
    check_input(text, "text")
    check_pools(model)
    if not can_tile(model.encoder):
        raise InvalidInput(
            f"{model.name} has softmax attention, in which each token depends on all others; "
            "records need a model with LLN+Diag",
            code="no_records",
            param="model",
            actual=model.name,
        )
    if options.truncate != "error":
        raise InvalidInput(
            "a document with a record is never truncated; leave truncate out",
            code="invalid_truncate",
            param="truncate",
            limit="error",
            actual=options.truncate,
        )
    if isinstance(chunking, SpanPlan):
        raise InvalidInput(
            "chunks of a document with a record follow its segments: fixed, sentences or sections; "
            "spans of the caller's own cannot",
            code="invalid_chunking",
            param="chunking.type",
            limit="fixed, sentences, sections",
            actual="spans",
        )
    if chunking is not None:
        check_chunking(chunking)
    if title is not None:
        check_title(title, chunking)


def _is_of(record: DocumentRecord, options: EmbedOptions, chunking: Chunking | None) -> bool:
    """Whether the record's vectors are those that are asked for."""
    return record.prompt_name == options.prompt_name and record.chunking == chunking


def _reads_alike(record: DocumentRecord, num_tokens: int, block: int) -> bool:
    """Whether segments are read with blocks of the same size, and with LLN if they were."""
    same_lln = (record.num_tokens > record.block_size) == (num_tokens > block)
    return record.block_size == block and same_lln


def _parts(
    text: str,
    title: str | None,
    tokenizer: TextTokenizer,
    record: DocumentRecord | None,
    read_again: Container[int],
) -> Steps[list[Part]]:
    # A title is read with the first segment, as the opening is.
    first_too = record is not None and record.title != title
    finder = _Finder(text, record)
    parts: list[Part] = []
    start = 0
    while start < len(text):
        found = finder.find(start)
        kept = None if record is None or found is None else record.segments[found]
        is_asked_for = len(parts) in read_again or (first_too and not parts)
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


def _prompt_ids(model: EmbeddingModel, options: EmbedOptions) -> Ids:
    prompt = prompt_of(options, model)
    if not prompt:
        return np.zeros(0, np.int32)
    (encoded,) = model.tokenizer.encode_batch([prompt])
    return encoded.content


def _with_chunks(parts: Sequence[Part], text: str, chunking: Chunking | None) -> Steps[list[Part]]:
    """The parts with the chunks of those to be read. No chunk goes beyond its segment."""
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
    if count > MAX_CHUNKS:
        raise InvalidInput(
            f"the document would have {count} chunks, the limit is {MAX_CHUNKS}; "
            "ask for larger ones",
            code="too_many_chunks",
            param="chunking",
            limit=MAX_CHUNKS,
            actual=count,
        )
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


def _document(
    text: str,
    model: EmbeddingModel,
    options: EmbedOptions,
    chunking: Chunking | None,
    title: str | None,
    parts: Sequence[Part],
    record: DocumentRecord | None,
    prompt: Ids,
    num_tokens: int,
) -> LivingDocument:
    has_chunks = any(part.chunks for part in parts)
    shares = shares_of(chunking) if chunking is not None and has_chunks else Shares(0.0, 0.0)
    return LivingDocument(
        text=text,
        options=options,
        chunking=chunking,
        title=title,
        shares=shares,
        parts=tuple(parts),
        record=record,
        num_tokens=num_tokens,
        num_before=model.tokenizer.num_prefix + len(prompt),
        block_size=block_size(model.encoder, num_tokens),
        segmented=_segmented(model, options, shares, title, parts, record, prompt, num_tokens),
    )


def _segmented(
    model: EmbeddingModel,
    options: EmbedOptions,
    shares: Shares,
    title: str | None,
    parts: Sequence[Part],
    record: DocumentRecord | None,
    prompt: Ids,
    num_tokens: int,
) -> SegmentedText | None:
    """What the device reads: the parts that are not kept, one after the other."""
    used_title = title if shares.opening else None
    if all(part.kept is not None for part in parts):
        return None
    tokenizer = model.tokenizer
    rows: list[Ids] = []
    readings: list[Reading] = []
    spans: list[Span] = []
    alone: list[Span] = []
    has_opening = False
    start = 0
    for index, part in enumerate(parts):
        if part.kept is not None:
            readings.append(Reading(states=part.kept.states))
            continue
        own, first = _rows_of(part, index, len(parts), prompt, tokenizer)
        if index == 0 and shares.opening and used_title is None:
            has_opening = True
            spans.append(Span(0, min(len(prompt) + OPENING_TOKENS, len(own))))
            alone += spans
        offset = start + first
        chunks = [Span(offset + one.tokens.start, offset + one.tokens.end) for one in part.chunks]
        spans += chunks
        alone += chunks if part.alone is None else ()
        rows.append(own)
        readings.append(Reading(num_rows=len(own)))
        start += len(own)
    return SegmentedText(
        ids=np.concatenate(rows),
        spans=(Span(0, start), *spans),
        chunks=(),
        opening=shares.opening,
        alone=shares.alone,
        title=title_ids(prompt_of(options, model) + used_title, model) if used_title else None,
        num_prompt=len(prompt),
        num_tokens=start,
        dropped=None,
        readings=tuple(readings),
        length=num_tokens,
        first_sinks=None if record is None else record.first_sinks,
        last_sinks=None if record is None else record.last_sinks,
        ids_of_prompt=prompt,
        has_opening=has_opening,
        spans_alone=tuple(alone if shares.alone else ()),
    )


def _rows_of(
    part: Part, index: int, count: int, prompt: Ids, tokenizer: TextTokenizer
) -> tuple[Ids, int]:
    """The part's tokens with what stands at the document's ends, and the row of the first token
    of its own."""
    assert part.ids is not None
    before = np.concatenate([tokenizer.prefix_ids, prompt]) if index == 0 else prompt[:0]
    after = tokenizer.suffix_ids if index == count - 1 else prompt[:0]
    return np.concatenate([before, part.ids, after]).astype(np.int32), len(before)
