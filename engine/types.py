"""What goes into the engine and what comes out of it: plain data, and what is read off it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Vector: TypeAlias = NDArray[np.float32]
Ids: TypeAlias = NDArray[np.int32]  # [tokens]
Offsets: TypeAlias = NDArray[np.int32]  # [tokens, 2] characters, from start to before end
TextInput: TypeAlias = str | Sequence[int]
Truncate: TypeAlias = Literal["error", "start", "end"]
Priority: TypeAlias = Literal["normal", "background"]
Attention: TypeAlias = Literal["softmax", "lln", "lln_diag", "block_diagonal"]
Mode: TypeAlias = Literal["auto", "exact", "sampled"]
"""Of a diagnosis: the rows that would cost N x N are all read while that is cheap, always, or
sampled. No mode is about what is iterated or drawn at random, which states its error in each."""
Precision: TypeAlias = Literal["float32", "bfloat16"]
"""Of a model's products while it is trained."""
Scope: TypeAlias = Literal["head", "layer"]
"""Whether an instrument reads every head or whole layers."""
PositionScheme: TypeAlias = Literal["tile", "interpolate", "reset"]
"""What stands in for learned positions beyond their table; engine/model/positions.py says how."""


class Span(NamedTuple):
    """A half-open range, of characters or of tokens."""

    start: int
    end: int


@dataclass(frozen=True, kw_only=True)
class EmbedOptions:
    """How texts become vectors. One set of defaults for every front end."""

    prompt_name: str | None = None
    """A prompt of the model's own, put before each text; None takes the model's default one."""

    dimensions: int | None = None
    """Keep the first so many numbers, then normalise; None keeps all."""

    normalize: bool = True
    truncate: Truncate = "error"
    """A text beyond the model's limit: refuse it, drop its start or drop its end."""

    priority: Priority = "normal"
    """Whether texts that come a little later may go first."""


@dataclass(frozen=True, kw_only=True)
class Accounting:
    """What one text cost. Filled by the engine; times are those of the batch it ran in."""

    tokens: int
    """Tokens of the whole text, special tokens included."""

    tokens_embedded: int
    """Tokens the model read; fewer than `tokens` only if truncation was asked for."""

    dropped: Span | None = None
    """The characters that truncation dropped (None also for token input, which has none)."""

    queue_s: float = 0.0
    compute_s: float = 0.0
    """With what reading a document's passages alone took, where that was asked for."""


@dataclass(frozen=True, kw_only=True)
class Embedding:
    vector: Vector  # [dim], or [tokens, dim] for a model that does not pool
    accounting: Accounting


@dataclass(frozen=True, kw_only=True)
class _LateChunks:
    """What every way of cutting a document has."""

    opening: float = 0.0
    """How much of the vector of the document's first tokens is added to each chunk's, for passages
    that do not say themselves what document they are of. 0 adds nothing; 1 as much as the chunk."""

    alone: float = 0.0
    """How much of each chunk's vector, and of the opening's, is that of the passage read alone, as
    a text of its own, which is nearer to short queries. 0 to 1; the rest is the late chunk's."""


OF_ALL_CHUNKS = tuple(field.name for field in fields(_LateChunks))


@dataclass(frozen=True, kw_only=True)
class ChunkPlan(_LateChunks):
    """Late chunks of a fixed number of tokens, each starting `tokens - overlap` after the last."""

    tokens: int = 256
    overlap: int = 0


@dataclass(frozen=True, kw_only=True)
class SentencePlan(_LateChunks):
    """Late chunks of whole sentences."""

    min_tokens: int = 1
    """Sentences are joined until a chunk has so many tokens; 1 makes each a chunk."""

    max_tokens: int = 256
    """A longer sentence is cut."""


HeadingFormat: TypeAlias = Literal["auto", "markdown", "html", "plain"]


@dataclass(frozen=True, kw_only=True)
class HeadingPlan(_LateChunks):
    """Late chunks from heading to heading."""

    max_tokens: int = 512
    """A longer section is cut, between sentences where it can be."""

    format: HeadingFormat = "auto"
    """How headings are written; "auto" looks at the text."""


@dataclass(frozen=True, kw_only=True)
class SpanPlan(_LateChunks):
    """Late chunks of the caller's own: they may overlap and come in any order."""

    spans: tuple[Span, ...]  # characters


Chunking: TypeAlias = ChunkPlan | SentencePlan | HeadingPlan | SpanPlan


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """A passage pooled from token states that have seen the whole document."""

    index: int
    tokens: Span  # of the document's token sequence, special tokens included
    characters: Span  # of the original text
    vector: Vector  # [dim]
    headings: tuple[str, ...] = ()  # those it stands under, outermost first; `HeadingPlan` only


@dataclass(frozen=True, kw_only=True)
class DocumentEmbedding:
    vector: Vector  # [dim]
    chunks: tuple[Chunk, ...]
    accounting: Accounting

    @property
    def tokens(self) -> int:
        return self.accounting.tokens


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a document is. Each says at least as much as the one before."""

    tokens_done: int
    """The work done, in tokens that went through the whole model."""

    tokens_total: int
    seconds_left: float | None
    """At the pace so far; None while there is none."""


@dataclass(frozen=True, kw_only=True)
class ChunksReady:
    """The next chunks in order, with their final vectors."""

    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a text of so many tokens would take here, were it alone."""

    model: str
    tokens: int
    fits: bool
    """Whether it would be let in: within the model's longest text and the memory there is."""
    path: Literal["packed", "swept"]
    bytes: int
    """The most it holds at once, beyond the model itself."""
    seconds: float
    """Of the device; reading the text into tokens comes before."""
    tiles: int
    """Pieces of each layer between which other work can run; 1 for a packed text."""
    tile_tokens: int
    """Tokens of a piece at most."""
    keeps_projections: bool
    """Whether a sweep has the room to make each layer's projections only once."""
    max_tokens: int
    max_bytes: int


DocumentEvent: TypeAlias = Progress | ChunksReady


@dataclass(frozen=True, kw_only=True)
class Tokenization:
    ids: tuple[int, ...]
    offsets: tuple[Span, ...]  # of the original text; (0, 0) for special tokens
    tokens: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """What is loaded, as front ends report it."""

    name: str
    family: str
    attention: tuple[str, ...]  # one for each layer
    dim: int
    num_layers: int
    num_heads: int
    max_tokens: int
    position_table: int
    pooling: str
    prompts: Mapping[str, str]
    revision: str  # SHA-256 of the weights file
    calibration: str | None  # SHA-256 of the LLN parameters, None for pure softmax
    source: str  # where the weights came from: folder, package, cache or hub
    device: str
    dtype: str
    aliases: tuple[str, ...] = ()


Nested: TypeAlias = float | Sequence["Nested"]
"""Numbers in lists of lists."""


@dataclass(frozen=True, kw_only=True)
class Beside:
    """A quantity read beside an instrument's value."""

    name: str
    unit: str
    values: tuple[Nested | None, ...]  # [layers], each [heads] or [heads][...]; None where not read
    error: tuple[Nested | None, ...] | None  # like values, None where exact


@dataclass(frozen=True, kw_only=True)
class HeadValues:
    """One instrument's reading of every head asked for, or of every layer."""

    instrument: str
    unit: str
    method: str
    values: tuple[tuple[float, ...], ...]  # [layers][heads], [layers][1] of whole layers
    error: tuple[tuple[float, ...], ...] | None  # like values, None where exact
    compute_s: float
    scope: Scope = "head"
    cost: str = ""
    """How the work grows with N tokens, heads of D, blocks of b, states of W."""
    beside: tuple[Beside, ...] = ()


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """An instrument that was not asked for by name and is too dear at this length."""

    instrument: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class InstrumentInfo:
    """What there is to read."""

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
    attention: tuple[str, ...]  # one for each layer in `layers`
    instruments: tuple[HeadValues, ...]
    accounting: Accounting
    mode: Mode = "auto"
    left_out: tuple[LeftOut, ...] = ()


@dataclass(frozen=True, kw_only=True)
class MapOptions:
    """Which head to map, which window of it, and into how many cells."""

    layer: int
    head: int
    rows: Span | None = None
    """The queries shown, as tokens; None is all."""

    columns: Span | None = None
    """The keys shown, as tokens; None is all."""

    height: int = 256
    width: int = 256
    """Cells wanted; never more than there are tokens."""

    links: int = 0
    """So many of the window's strongest single entries."""

    topics: int = 0
    """So many of LLN's channels, those that carry most attention first."""

    topic_tokens: int = 12
    """Tokens listed for each of them."""


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
    document: str  # the handle to ask for more by
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


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A part of a document. It begins where the mean states of the tokens before and after are
    least alike, as where the subject changes."""

    level: int  # 0 is the coarsest
    tokens: Span
    characters: Span
    children: tuple[Segment, ...]


@dataclass(frozen=True, kw_only=True)
class Structure:
    model: str
    document: str  # the handle to ask for more by
    tokens: int
    layer: int  # whose input was looked at
    scales: tuple[int, ...]  # tokens of a typical segment, by level
    segments: tuple[Segment, ...]
