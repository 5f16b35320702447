"""What the device reads of a document: the segments that its record does not hold."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field

import numpy as np

from engine.errors import InvalidInput
from engine.execution.documents import title_ids
from engine.execution.inputs import (
    PreparedText,
    check_input,
    check_pools,
    prompt_ids_of,
    prompt_of,
)
from engine.living.part_chunks import with_chunks
from engine.living.parts import Part, parts_of
from engine.living.record import DocumentRecord
from engine.model.embedding_model import EmbeddingModel
from engine.model.segmented_pass import LayerStates, Reading, SinkRows
from engine.model.tiled_pass import block_size, can_tile
from engine.steps import Steps
from engine.text.chunking import NO_SHARES, Shares, check_chunking, shares_of
from engine.text.openings import opening_of
from engine.text.titles import NO_TITLES, Titles, titles_of
from engine.text.tokenizer import TextTokenizer
from engine.text.truncation import never_truncated, too_long
from engine.types import (
    Chunking,
    EmbedOptions,
    Ids,
    Span,
    SpanPlan,
)


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
    titles: Titles
    shares: Shares
    parts: tuple[Part, ...]
    record: DocumentRecord | None
    num_tokens: int
    num_before: int  # tokens before the first of the text: special ones and those of a prompt
    block_size: int
    segmented: SegmentedText | None  # None if there is nothing to read

    @property
    def share_of_opening(self) -> float:
        return self.shares.opening if self.titles == NO_TITLES else self.shares.title

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
    check_living(text, model, options, chunking)
    if record is not None and not _is_of(record, options, chunking):
        record = None
    parts = yield from parts_of(text, title, model.tokenizer, record, read_again)
    prompt = prompt_ids_of(options, model)
    around = model.tokenizer.num_special + len(prompt)
    num_tokens = sum(part.num_content for part in parts) + around
    if num_tokens > model.info.max_tokens:
        with never_truncated():
            raise too_long(num_tokens, model.info.max_tokens, "text")
    block = block_size(model.encoder, num_tokens)
    if record is not None and not _reads_alike(record, num_tokens, block):
        record = None
        parts = yield from parts_of(text, title, model.tokenizer, None, ())
    titles = _titles(text, title, parts[0], record)
    parts = yield from with_chunks(parts, text, chunking)
    return _document(text, model, options, chunking, titles, parts, record, prompt, num_tokens)


def check_living(
    text: str,
    model: EmbeddingModel,
    options: EmbedOptions,
    chunking: Chunking | None,
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


def _is_of(record: DocumentRecord, options: EmbedOptions, chunking: Chunking | None) -> bool:
    """Whether the record's vectors are those that are asked for."""
    return record.prompt_name == options.prompt_name and record.chunking == chunking


def _reads_alike(record: DocumentRecord, num_tokens: int, block: int) -> bool:
    """Whether segments are read with blocks of the same size, and with LLN if they were."""
    same_lln = (record.num_tokens > record.block_size) == (num_tokens > block)
    return record.block_size == block and same_lln


def _titles(text: str, told: str | None, first: Part, record: DocumentRecord | None) -> Titles:
    """The title, if it stands in the first segment: it is read with it."""
    if record is not None and first.kept is not None:
        return record.titles
    return titles_of(text, told).within(first.characters.end)


def _document(
    text: str,
    model: EmbeddingModel,
    options: EmbedOptions,
    chunking: Chunking | None,
    titles: Titles,
    parts: Sequence[Part],
    record: DocumentRecord | None,
    prompt: Ids,
    num_tokens: int,
) -> LivingDocument:
    has_chunks = any(part.chunks for part in parts)
    shares = shares_of(chunking) if chunking is not None and has_chunks else NO_SHARES
    return LivingDocument(
        text=text,
        options=options,
        chunking=chunking,
        titles=titles,
        shares=shares,
        parts=tuple(parts),
        record=record,
        num_tokens=num_tokens,
        num_before=model.tokenizer.num_prefix + len(prompt),
        block_size=block_size(model.encoder, num_tokens),
        segmented=_segmented(model, options, shares, titles, parts, record, prompt, num_tokens),
    )


def _segmented(
    model: EmbeddingModel,
    options: EmbedOptions,
    shares: Shares,
    titles: Titles,
    parts: Sequence[Part],
    record: DocumentRecord | None,
    prompt: Ids,
    num_tokens: int,
) -> SegmentedText | None:
    """What the device reads: the parts that are not kept, one after the other."""
    told = titles.told if shares.opening else None
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
        if index == 0 and shares.opening and told is None:
            assert part.offsets is not None, "a part to be read has offsets"
            has_opening = True
            opening = opening_of(
                *(part.offsets, titles.found, shares),
                first=first,
                num_prompt=len(prompt),
                num_tokens=len(own),
            )
            spans.append(opening.tokens)
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
        title=title_ids(prompt_of(options, model) + told, model) if told else None,
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
