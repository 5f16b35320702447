"""What is kept of a document that was read: enough to read it on after a change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from engine.living.staleness import View
from engine.living_types import RecordPrecision
from engine.model.embedding_model import EmbeddingModel
from engine.model.segmented_pass import LayerStates, SinkRows
from engine.text.chunking import ChunkSpan
from engine.text.segments import SegmentKey
from engine.text.titles import Titles
from engine.types import Chunking, HeadingFormat, Vector


class SegmentVectors(NamedTuple):
    """What pooling needs of a segment."""

    late: Vector  # [chunks, W] as read within the document
    alone: Vector  # [chunks, W] as read alone; [0, W] where nothing is read alone
    flat: Vector  # [W] the segment pooled as a whole
    rising: Vector  # [W] the same with weights that grow from 0 to 2


@dataclass(frozen=True, kw_only=True)
class KeptSegment:
    """One segment as it was when it was read."""

    key: SegmentKey
    num_characters: int
    num_rows: int  # tokens, with those of the prompt and special ones at the document's ends
    num_content: int
    chunks: tuple[ChunkSpan, ...]  # tokens and characters from the segment's start
    vectors: SegmentVectors
    states: LayerStates
    view: int  # which of the record's views it was read with
    num_sealed: int = 0  # chunks of a folded segment, which keeps none of their vectors

    @property
    def num_chunks(self) -> int:
        return len(self.chunks) + self.num_sealed


@dataclass(frozen=True, kw_only=True)
class DocumentRecord:
    """A document as it was read, segment by segment."""

    identity: Mapping[str, str]  # of the model
    prompt_name: str | None
    chunking: Chunking | None
    titles: Titles
    num_tokens: int
    block_size: int
    first_sinks: SinkRows
    last_sinks: SinkRows
    opening: Vector
    """[2, W] late and alone, [1, W] of a told title or where nothing is read alone, or [0, W]."""
    views: tuple[View, ...]
    """What segments saw of the rest when they were read; the last is what they would see now."""
    segments: tuple[KeptSegment, ...]
    precision: RecordPrecision = "float32"
    folded: bool = False
    """Whether all segments but the last are one, without chunks: see `fold.py`."""
    heading_format: HeadingFormat | None = None
    """The format by which chunks of sections were cut; None for other chunks, or if it is not
    known."""

    @property
    def num_chunks(self) -> int:
        return sum(segment.num_chunks for segment in self.segments)


def identity_of(model: EmbeddingModel) -> dict[str, str]:
    """What a record must share with the model that reads it on."""
    info = model.info
    return {
        "model": info.name,
        "revision": info.revision,
        "calibration": info.calibration or "",
        "attention": ",".join(info.attention),
        "dtype": info.dtype,
    }
