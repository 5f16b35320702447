"""The segments of a document that its record does not hold, as one text for the device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from engine.execution.inputs import PreparedText
from engine.execution.prompts import prompt_of
from engine.execution.told_titles import title_ids
from engine.living.parts import Part
from engine.living.record import DocumentRecord
from engine.model.embedding_model import EmbeddingModel
from engine.model.segmented_pass import LayerStates, Reading, SinkRows
from engine.text.chunking import Shares
from engine.text.openings import opening_of
from engine.text.titles import Titles
from engine.text.tokenizer import TextTokenizer
from engine.types import EmbedOptions, Ids, Span


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


def segmented_text(
    parts: Sequence[Part],
    model: EmbeddingModel,
    options: EmbedOptions,
    *,
    shares: Shares,
    titles: Titles,
    record: DocumentRecord | None,
    prompt: Ids,
    length: int,
) -> SegmentedText | None:
    """The parts that are not kept, one after the other. None if the record holds them all."""
    placed = list(_placed(parts, prompt, model.tokenizer))
    to_read = [one for one in placed if not one.is_kept]
    if not to_read:
        return None
    ids = np.concatenate([one.ids for one in to_read])
    told = titles.told if shares.opening else None
    # A title given by the caller is read as a separate text, instead of the opening.
    has_opening = bool(shares.opening) and titles.told is None and not placed[0].is_kept
    openings = [_opening(placed[0], titles, shares, len(prompt))] if has_opening else []
    chunks = [chunk for one in to_read for chunk in one.chunks]
    alone = [chunk for one in to_read if one.part.alone is None for chunk in one.chunks]
    return SegmentedText(
        ids=ids,
        spans=(Span(0, len(ids)), *openings, *chunks),
        chunks=(),
        opening=shares.opening,
        alone=shares.alone,
        title=title_ids(prompt_of(options, model) + told, model) if told else None,
        num_prompt=len(prompt),
        num_tokens=len(ids),
        dropped=None,
        readings=tuple(one.reading for one in placed),
        length=length,
        first_sinks=None if record is None else record.first_sinks,
        last_sinks=None if record is None else record.last_sinks,
        ids_of_prompt=prompt,
        has_opening=has_opening,
        spans_alone=(*openings, *alone) if shares.alone else (),
    )


class _PlacedPart(NamedTuple):
    """A part, and its rows among those that the device reads; a kept part has none."""

    part: Part
    ids: Ids  # the part's tokens, with what stands at the document's ends
    start: int  # the row of the first of these
    num_before: int  # tokens before the part's own

    @property
    def is_kept(self) -> bool:
        return self.part.kept is not None

    @property
    def reading(self) -> Reading:
        kept = self.part.kept
        return Reading(num_rows=len(self.ids)) if kept is None else Reading(states=kept.states)

    @property
    def chunks(self) -> list[Span]:
        first = self.start + self.num_before
        return [
            Span(first + chunk.tokens.start, first + chunk.tokens.end) for chunk in self.part.chunks
        ]


def _placed(parts: Sequence[Part], prompt: Ids, tokenizer: TextTokenizer) -> Iterator[_PlacedPart]:
    """Special tokens and the prompt are read with the first part and the last."""
    nothing = prompt[:0]
    start = 0
    for index, part in enumerate(parts):
        if part.kept is not None:
            yield _PlacedPart(part, nothing, start, 0)
            continue
        assert part.ids is not None, "a part is kept or has tokens"
        before = np.concatenate([tokenizer.prefix_ids, prompt]) if index == 0 else nothing
        after = tokenizer.suffix_ids if index == len(parts) - 1 else nothing
        ids = np.concatenate([before, part.ids, after]).astype(np.int32)
        yield _PlacedPart(part, ids, start, len(before))
        start += len(ids)


def _opening(first: _PlacedPart, titles: Titles, shares: Shares, num_prompt: int) -> Span:
    assert first.part.offsets is not None, "a part to be read has offsets"
    return opening_of(
        first.part.offsets,
        titles.found,
        shares,
        first=first.num_before,
        num_prompt=num_prompt,
        num_tokens=len(first.ids),
    ).tokens
