"""What is asked about attention, and the answers: diagnoses, maps and structure, as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from engine.types import Accounting, Attention, Span

Mode: TypeAlias = Literal["auto", "exact", "sampled"]
"""How a diagnosis reads rows that cost N x N: all of them while that is cheap ("auto"), always
("exact"), or a sample of them ("sampled"). Instruments that iterate or draw at random do so in
every mode, and state their error."""


SAMPLED_ROWS = 96
"""Rows of a head that a diagnosis reads where it samples, unless the caller chooses."""


Scope: TypeAlias = Literal["head", "layer"]
"""Whether an instrument reads each head or whole layers."""


Nested: TypeAlias = float | Sequence["Nested"]
"""Numbers in nested lists."""


@dataclass(frozen=True, kw_only=True)
class ExtraReading:
    """A quantity that an instrument reads besides its value."""

    name: str
    unit: str
    values: tuple[Nested | None, ...]  # [layers], each [heads] or [heads][...]; None where not read
    error: tuple[Nested | None, ...] | None  # like values, None where exact


@dataclass(frozen=True, kw_only=True)
class HeadValues:
    """One instrument's reading of every chosen head, or of every chosen layer."""

    instrument: str
    unit: str
    method: str
    values: tuple[tuple[float, ...], ...]  # [layers][heads], [layers][1] of whole layers
    error: tuple[tuple[float, ...], ...] | None  # like values, None where exact
    compute_s: float
    scope: Scope = "head"
    cost: str = ""
    """How the work grows with N tokens, head size D, block size b and state width W."""
    beside: tuple[ExtraReading, ...] = ()
    labels: tuple[tuple[str, ...], ...] | None = None  # like values, of instruments that name heads


@dataclass(frozen=True, kw_only=True)
class SkippedInstrument:
    """An instrument, or a quantity beside it, that is not in the answer: it was not asked for by
    name and costs too much at this length, or it has no finite value for this text."""

    instrument: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class InstrumentInfo:
    """An instrument, as front ends list it."""

    name: str
    unit: str
    scope: Scope
    description: str


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    model: str
    tokens: int
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    attention: tuple[str, ...]  # as it was measured, one for each layer in `layers`
    instruments: tuple[HeadValues, ...]
    accounting: Accounting
    mode: Mode = "auto"
    sampled_rows: int = SAMPLED_ROWS
    rows_read: int = 0
    """Rows of each head, for instruments whose rows each cost as much as the text is long."""

    seed: int = 0
    quantiles: tuple[float, ...] = ()
    """The shares of the rows that `quantiles` beside an instrument are for, where asked for."""

    notes: tuple[str, ...] = ()
    """What a reader must know to compare these values with those of other texts."""

    left_out: tuple[SkippedInstrument, ...] = ()


@dataclass(frozen=True, kw_only=True)
class MapOptions:
    """Which head to map, which window of it, and how many cells to show."""

    layer: int
    head: int
    rows: Span | None = None
    """The queries shown, as tokens; None is all."""

    columns: Span | None = None
    """The keys shown, as tokens; None is all."""

    height: int = 256
    width: int = 256
    """Cells to show; never more than there are tokens."""

    links: int = 0
    """How many of the window's strongest single entries to return."""

    topics: int = 0
    """How many of LLN's channels to return, those that carry most attention first."""

    topic_tokens: int = 12
    """Tokens listed for each channel."""


class Link(NamedTuple):
    """One entry of the attention matrix."""

    query: int
    key: int
    weight: float


@dataclass(frozen=True, kw_only=True)
class TopicToken:
    index: int
    token: str
    characters: Span | None  # None for a special token
    weight: float


@dataclass(frozen=True, kw_only=True)
class Topic:
    """One channel of an LLN head."""

    channel: int
    share: float  # of all the head's attention
    effective_tokens: float  # exp of the entropy over its tokens
    tokens: tuple[TopicToken, ...]  # those it attends to
    users: tuple[TopicToken, ...]  # those that attend through it


@dataclass(frozen=True, kw_only=True)
class AttentionMap:
    """A head's attention from the rows (queries) to the columns (keys) of a window."""

    model: str
    document: str  # the handle for further questions
    tokens: int
    layer: int
    head: int
    attention: Attention
    rows: Span
    columns: Span
    row_edges: tuple[int, ...]
    column_edges: tuple[int, ...]
    mass: NDArray[np.float64]
    """[rows, columns]: how much of its attention the mean token of a cell's rows gives to the
    cell's columns. A row of all columns sums to 1."""

    links: tuple[Link, ...]
    topics: tuple[Topic, ...] | None  # None if not asked for, or if there are no channels
    queue_s: float = 0.0
    compute_s: float = 0.0

    @property
    def mean(self) -> NDArray[np.float64]:
        """The mean entry of P in each cell."""
        return self.mass / np.diff(self.column_edges)

    @property
    def sum(self) -> NDArray[np.float64]:
        """The sum of P over each cell."""
        return self.mass * np.diff(self.row_edges)[:, None]


SegmentStart: TypeAlias = Literal["text", "heading", "vectors"]
"""What a segment begins with: the text itself, a heading, or a place that states alone decided."""


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A part of a document. It begins at a heading, or where the states before and after are least
    alike on average, as where the subject changes."""

    level: int  # 0 is the coarsest
    tokens: Span
    characters: Span
    begins: SegmentStart
    children: tuple[Segment, ...]


@dataclass(frozen=True, kw_only=True)
class Structure:
    model: str
    document: str  # the handle for further questions
    tokens: int
    layer: int  # the layer whose input was analysed
    scales: tuple[int, ...]  # tokens of a typical segment, by level
    segments: tuple[Segment, ...]
