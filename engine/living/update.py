"""From what the device read, and what the record holds, to the document's answer and new record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, repeat
from typing import NamedTuple

import numpy as np

from engine.execution.results import (
    NO_STANDALONE,
    StandaloneVectors,
    add_opening,
    blend_standalone,
    finish_vectors,
)
from engine.living.fold import fold
from engine.living.pooling import pooled_whole
from engine.living.prepare import LivingDocument
from engine.living.record import DocumentRecord, KeptSegment, SegmentVectors, identity_of
from engine.living.record_bytes import to_bytes
from engine.living.staleness import BESIDE, UNSEEN, bound, measured_for, movement, view_of
from engine.living_types import LivingChunk, LivingEmbedding, RecordPrecision
from engine.model.embedding_model import EmbeddingModel
from engine.model.segmented_pass import SinkRows
from engine.scheduling.request import TimedResult
from engine.types import Accounting, Span, Vector


class ReadVectors(NamedTuple):
    """What the device gave: the run over segments, and the texts that were read alone."""

    result: TimedResult[Vector] | None = None
    alone: StandaloneVectors = NO_STANDALONE


def record_of(
    document: LivingDocument,
    read: ReadVectors,
    model: EmbeddingModel,
    precision: RecordPrecision = "float32",
    *,
    folded: bool = False,
) -> DocumentRecord:
    """The record of the document as it stands now."""
    given = _Given.of(document, read)
    fresh = iter(_segments_read(document, given))
    segments = [part.kept or next(fresh) for part in document.parts]
    first, last = _sinks(document)
    view = view_of(
        *([one.states for one in segments], first, last),
        num_tokens=document.num_tokens,
        block_size=document.block_size,
    )
    # Views that no segment has any more are forgotten.
    old = () if document.record is None else document.record.views
    used = sorted({part.kept.view for part in document.parts if part.kept is not None})
    number_of = {view: number for number, view in enumerate(used)}
    return DocumentRecord(
        identity=identity_of(model),
        prompt_name=document.options.prompt_name,
        chunking=document.chunking,
        titles=document.titles,
        num_tokens=document.num_tokens,
        block_size=document.block_size,
        first_sinks=first,
        last_sinks=last,
        opening=given.opening if document.record is None or given.reads_first else _kept(document),
        views=(*(old[view] for view in used), view),
        segments=tuple(
            replace(
                segment,
                chunks=part.chunks,
                view=len(used) if part.kept is None else number_of[part.kept.view],
            )
            for part, segment in zip(document.parts, segments, strict=True)
        ),
        precision=precision,
        folded=folded,
        heading_format=document.heading_format,
    )


@dataclass(kw_only=True)
class Work:
    """What all rounds of an answer did together."""

    rounds: int = 0
    tokens_read: int = 0
    tokens_alone: int = 0
    queue_s: float = 0.0
    compute_s: float = 0.0
    kept_at: dict[int, int] = field(default_factory=dict)
    """For each segment that no round read, the number of the same in the caller's record."""

    def add(self, document: LivingDocument, read: ReadVectors) -> None:
        kept = {
            at: part.kept_at for at, part in enumerate(document.parts) if part.kept_at is not None
        }
        if self.rounds:  # this round went on from the record of the one before
            kept = {at: self.kept_at[at] for at in kept if at in self.kept_at}
        self.kept_at = kept
        self.rounds += 1
        self.tokens_read += document.num_read
        self.tokens_alone += read.alone.tokens
        self.compute_s += read.alone.compute_s
        if read.result is not None:
            self.queue_s += read.result.queue_s
            self.compute_s += read.result.compute_s


def answer_of(
    document: LivingDocument,
    record: DocumentRecord,
    model: EmbeddingModel,
    work: Work,
    before: DocumentRecord | None = None,
) -> LivingEmbedding:
    """What the caller gets, from the new record. `before` is the record that was sent."""
    staleness = staleness_of(record, model)
    chunks = tuple(_chunks(document, record, staleness, _previous_of(work, document, before)))
    first = record.segments[0]
    kept = {chunk.previous for chunk in chunks} | set(range(first.num_sealed))
    num_before = 0 if before is None else before.num_chunks
    return LivingEmbedding(
        vector=finish_vectors(pooled_whole(record, model)[None], document.options)[0],
        chunks=chunks,
        accounting=Accounting(
            tokens=document.num_tokens,
            tokens_embedded=document.num_tokens,
            queue_s=work.queue_s,
            compute_s=work.compute_s,
            tokens_alone=work.tokens_alone,
        ),
        record=to_bytes(_as_kept(record, document.text, staleness, model)),
        tokens_read=work.tokens_read,
        staleness=_staleness_of_whole(record, staleness),
        segments=len(record.segments),
        segments_read=len(record.segments) - len(work.kept_at),
        gone=tuple(index for index in range(num_before) if index not in kept),
        rounds=work.rounds,
        sealed=first.num_sealed,
        sealed_staleness=staleness[0] if first.num_sealed else 0.0,
    )


def _as_kept(
    record: DocumentRecord, text: str, staleness: Sequence[float], model: EmbeddingModel
) -> DocumentRecord:
    if not record.folded:
        return record
    return fold(record, text, staleness, model.checkpoint.pooling)


def staleness_of(record: DocumentRecord, model: EmbeddingModel) -> list[float]:
    """The bound for each segment of a record, whose last view is the one of now.

    Views are sketches: one that seems not to have moved says nothing if some segment was read now.
    """
    *earlier, now = record.views
    bounds = [*(bound(movement(then, now, model), model) for then in earlier), 0.0]
    own = [bounds[segment.view] for segment in record.segments]
    is_new = [segment.view == len(earlier) for segment in record.segments]
    if not any(is_new) and not any(own):
        return own
    rows = [segment.num_rows for segment in record.segments]
    beside = BESIDE * float(np.average(own, weights=rows))
    least = measured_for(model.info.calibration).least
    return [
        0.0 if new else min(1.0, max(least, one + beside)) if one else UNSEEN
        for one, new in zip(own, is_new, strict=True)
    ]


class _Given(NamedTuple):
    """The vectors of the segments that were read, in their order."""

    late: Vector  # [chunks read, W]
    alone: Vector  # [chunks read alone now, W]
    flat: Vector  # [segments read, W]
    rising: Vector  # [segments read, W]
    opening: Vector  # [2, W] late and alone, [1, W] a told title or a late opening, or [0, W]
    reads_first: bool

    @classmethod
    def of(cls, document: LivingDocument, read: ReadVectors) -> _Given:
        text = document.segmented
        if text is None:
            none = np.zeros((0, 0), np.float32)
            return cls(none, none, none, none, none, reads_first=False)
        assert read.result is not None, "what was to be read was read"
        width = read.result.value.shape[1]
        alone = np.concatenate([np.zeros((0, width), np.float32), *read.alone.vectors])
        late, ends = np.split(read.result.value[1:], [len(text.spans) - 1])
        opening = alone[:0]
        if text.title is not None:
            opening, alone = alone[:1], alone[1:]
        elif text.has_opening:
            opening, late = late[:1], late[1:]
            if text.alone:
                opening, alone = np.concatenate([opening, alone[:1]]), alone[1:]
        flat, rising = np.split(ends, 2)
        return cls(late, alone, flat, rising, opening, reads_first=not text.readings[0].is_kept)


def _segments_read(document: LivingDocument, given: _Given) -> Iterator[KeptSegment]:
    at = at_alone = 0
    parts = [part for part in document.parts if part.kept is None]
    for number, part in enumerate(parts):
        assert document.segmented is not None
        end = at + len(part.chunks)
        alone = part.alone
        if alone is None:
            end_alone = at_alone + (len(part.chunks) if document.shares.alone else 0)
            alone, at_alone = given.alone[at_alone:end_alone], end_alone
        yield KeptSegment(
            key=part.key,
            num_characters=part.characters.end - part.characters.start,
            num_rows=document.segmented.rows_read[number],
            num_content=part.num_content,
            chunks=part.chunks,
            vectors=SegmentVectors(
                given.late[at:end], alone, given.flat[number], given.rising[number]
            ),
            states=document.segmented.read.states[number],
            view=0,
        )
        at = end


def _sinks(document: LivingDocument) -> tuple[SinkRows, SinkRows]:
    if document.segmented is not None:
        assert document.segmented.read.sinks is not None, "set when the run ended"
        return document.segmented.read.sinks
    assert document.record is not None, "what is not read is kept"
    return document.record.first_sinks, document.record.last_sinks


def _kept(document: LivingDocument) -> Vector:
    assert document.record is not None
    return document.record.opening


def _chunks(
    document: LivingDocument,
    record: DocumentRecord,
    staleness: Sequence[float],
    previous_of: Mapping[int, Sequence[int | None]],
) -> Iterator[LivingChunk]:
    vectors = iter(_chunk_vectors(document, record))
    rows = accumulate((one.num_rows for one in record.segments), initial=0)
    index = 0
    for number, (part, start) in enumerate(zip(document.parts, rows, strict=False)):
        before = _rows_before(document, number)
        index += record.segments[number].num_sealed
        numbers = previous_of.get(number, repeat(None))
        for chunk, previous in zip(part.chunks, numbers, strict=False):
            yield LivingChunk(
                index=index,
                tokens=_moved(chunk.tokens, start + before),
                characters=_moved(chunk.characters, part.characters.start),
                vector=next(vectors),
                headings=chunk.headings,
                previous=previous,
                staleness=staleness[number],
            )
            index += 1


def _chunk_vectors(document: LivingDocument, record: DocumentRecord) -> Vector:
    """[chunks, dim], finished. Of the same numbers as those of a document without a record."""
    late = np.concatenate([one.vectors.late for one in record.segments])
    if not len(late):
        return late
    shares, opening = document.shares, record.opening
    if shares.alone:
        alone = np.concatenate([one.vectors.alone for one in record.segments])
        late = blend_standalone(late, alone, shares.alone)
        if len(opening) == 2:
            opening = blend_standalone(opening[:1], opening[1:], shares.alone)
    if document.share_of_opening:
        late = add_opening(late, opening[0], document.share_of_opening)
    return finish_vectors(late, document.options)


def _previous_of(
    work: Work, document: LivingDocument, before: DocumentRecord | None
) -> dict[int, list[int | None]]:
    """For each segment that no round read, the index that each of its chunks had before. A chunk
    that stands under other headings now has none: what its caller keeps of it is to be replaced."""
    segments = () if before is None else before.segments
    starts = list(accumulate((one.num_chunks for one in segments), initial=0))
    return {
        at: [
            index if chunk.headings == was.headings else None
            for index, (chunk, was) in enumerate(
                zip(document.parts[at].chunks, segments[number].chunks, strict=True),
                starts[number],
            )
        ]
        for at, number in work.kept_at.items()
    }


def _rows_before(document: LivingDocument, number: int) -> int:
    """Rows of the prompt and of special tokens before the segment's own."""
    return document.num_before if number == 0 else 0


def _moved(span: Span, by: int) -> Span:
    return Span(span.start + by, span.end + by)


def _staleness_of_whole(record: DocumentRecord, staleness: Sequence[float]) -> float:
    """The mean staleness, weighted by the segments' tokens. Their errors are not independent, so
    they add up."""
    counts = np.array([one.num_rows for one in record.segments])
    return float((counts * np.array(staleness)).sum() / counts.sum())
