"""What goes into the engine and what comes out of it, as plain data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

Vector: TypeAlias = NDArray[np.float32]
Ids: TypeAlias = NDArray[np.int32]  # [tokens]
Offsets: TypeAlias = NDArray[np.int32]  # [tokens, 2] characters, from start to before end
TextInput: TypeAlias = str | Sequence[int]
Truncate: TypeAlias = Literal["error", "start", "end"]
Priority: TypeAlias = Literal["normal", "background"]
OutputDtype: TypeAlias = Literal["float", "float16", "int8", "uint8", "binary", "ubinary"]
"""The numbers of a vector that is given out; engine/model/quantized.py makes them."""
Attention: TypeAlias = Literal["softmax", "lln", "lln_diag", "block_diagonal"]
Precision: TypeAlias = Literal["float32", "bfloat16"]
"""The data type of a model's matrix products in training."""
PositionScheme: TypeAlias = Literal["tile", "interpolate", "reset"]
"""What replaces learned positions beyond their table; see engine/model/positions.py."""


_TOKENS_AT_ONCE = 1_024


class Span(NamedTuple):
    """A half-open range, of characters or of tokens."""

    start: int
    end: int


@dataclass(frozen=True, kw_only=True)
class EmbedOptions:
    """How texts become vectors. All front ends share these defaults."""

    prompt_name: str | None = None
    """One of the model's prompts, put before each text; None takes its default prompt."""

    dimensions: int | None = None
    """Keep this many numbers of each vector, then normalise; None keeps all."""

    normalize: bool = True
    truncate: Truncate = "error"
    """What to do with a text beyond the model's limit: refuse it, or drop its start or its end."""

    max_tokens: int | None = None
    """A lower limit than the model's, special tokens included; None takes the model's."""

    priority: Priority = "normal"
    """Background texts let texts pass that arrive a little later."""


@dataclass(frozen=True, kw_only=True)
class Accounting:
    """What one text cost. Times are those of the batch that it ran in."""

    tokens: int
    """Tokens of the whole text, special tokens included."""

    tokens_embedded: int
    """Tokens that the model read; fewer than `tokens` only if the text was truncated."""

    dropped: Span | None = None
    """The characters that truncation dropped; None for token input, which has none."""

    queue_s: float = 0.0
    compute_s: float = 0.0
    """Includes the time for the title and for passages read alone."""

    tokens_alone: int = 0
    """Tokens read besides, for the title and for passages read alone; `tokens_embedded` does not
    count them."""

    tokens_saved: int = 0
    """Those of `tokens_embedded` that were not read as a whole document: only chunks were asked
    for, and they take nothing from it."""


@dataclass(frozen=True, kw_only=True)
class Embedding:
    vector: Vector  # [dim], or [tokens, dim] for a model that does not pool
    accounting: Accounting


Context: TypeAlias = Literal["balanced", "late", "alone", "title", "opening", "one_pass", "linked"]
"""What a chunk's vector takes from its document. `engine.text.chunking.SHARES` has the numbers."""

OWN_CONTEXTS: tuple[Context, ...] = tuple(one for one in get_args(Context) if one != "linked")
"""What may be a model's own context, which counts where a caller says none. No document with a
record can have linked passages."""


@dataclass(frozen=True, kw_only=True)
class _LateChunks:
    """What all chunkings have in common."""

    context: Context | None = None
    """None is the model's own: `ModelInfo.chunk_context`.

    "balanced": half from the late chunk, half from the passage read alone, plus a share of the
    document's opening. "late": the late chunk alone. "alone": the passage read alone. "title": as
    balanced, with as much of the opening as of the chunk. "opening": the passage read alone, plus
    that share of the opening. "one_pass": the late chunk plus a share of the opening, so that
    nothing is read twice. "linked": as opening, but each passage also reads LLN's state of the
    whole document, which costs no second reading."""

    opening: float | None = None
    """How much of the vector of the document's title, told or found at its beginning, or else of
    its first tokens, is added to that of each chunk. 0 adds nothing; 1 adds as much as the chunk's
    own vector. It helps passages that do not say which document they are from. None takes what
    `context` gives."""

    alone: float | None = None
    """How much of each vector comes from the passage read alone, as a text of its own; the rest
    comes from the late chunk. 0 to 1. Passages read alone are nearer to short queries. None takes
    what `context` gives."""


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
    """Sentences are joined until a chunk has this many tokens; 1 makes each sentence a chunk."""

    max_tokens: int = 256
    """Longer sentences are cut."""


HeadingFormat: TypeAlias = Literal["auto", "markdown", "html", "plain"]


@dataclass(frozen=True, kw_only=True)
class HeadingPlan(_LateChunks):
    """Late chunks from heading to heading."""

    max_tokens: int = 512
    """Longer sections are cut, between sentences where possible."""

    format: HeadingFormat = "auto"
    """How headings are written; "auto" detects it."""


@dataclass(frozen=True, kw_only=True)
class SpanPlan(_LateChunks):
    """Late chunks chosen by the caller. They may overlap and come in any order."""

    spans: tuple[Span, ...]  # characters


Chunking: TypeAlias = ChunkPlan | SentencePlan | HeadingPlan | SpanPlan


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """A passage pooled from token states that have seen the whole document."""

    index: int
    tokens: Span  # of the document's token sequence, special tokens included
    characters: Span  # of the original text
    vector: Vector  # [dim]
    headings: tuple[str, ...] = ()  # above the chunk, outermost first; only with `HeadingPlan`


@dataclass(frozen=True, kw_only=True)
class DocumentChunks:
    """The chunks of a document, without its own vector."""

    chunks: tuple[Chunk, ...]
    accounting: Accounting

    @property
    def tokens(self) -> int:
        return self.accounting.tokens


@dataclass(frozen=True, kw_only=True)
class DocumentEmbedding(DocumentChunks):
    """The same with its own vector."""

    vector: Vector  # [dim]


RankScoring: TypeAlias = Literal["vectors", "tokens"]
"""How a text is scored: by the cosine of its best passage's vector with the query's, or by late
interaction: the mean, over the query's tokens, of the best cosine with a token of the passage."""


@dataclass(frozen=True, kw_only=True)
class RankOptions:
    scoring: RankScoring = "vectors"
    truncate: Truncate = "error"
    """What to do with a query or text beyond the model's limit."""
    max_tokens: int | None = None
    """A lower limit for the texts than the model's."""
    priority: Priority = "normal"


@dataclass(frozen=True, kw_only=True)
class RankedText:
    index: int  # in the caller's list
    score: float  # -1 to 1
    passage: Span  # the characters of the passage that scored best; of a short text, all

    @property
    def relevance(self) -> float:
        """The score from 0 to 1, in the same order."""
        return (1 + self.score) / 2


@dataclass(frozen=True, kw_only=True)
class Ranking:
    model: str
    scoring: RankScoring
    texts: tuple[RankedText, ...]  # the best first; equal scores in the caller's order
    accountings: tuple[Accounting, ...]  # of the query, then of the texts in the caller's order

    @property
    def tokens(self) -> int:
        """Tokens that were read."""
        return sum(cost.tokens_embedded + cost.tokens_alone for cost in self.accountings)


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a document is. Progress never goes back."""

    tokens_done: int
    """The work done, as a number of tokens that went through the whole model."""

    tokens_total: int
    seconds_left: float | None
    """At the pace so far; None while there is no pace yet."""


@dataclass(frozen=True, kw_only=True)
class ChunksReady:
    """The next chunks in order, with their final vectors."""

    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a text of this many tokens would take here if it ran alone."""

    model: str
    tokens: int
    fits: bool
    """Whether it would be accepted: it is within the model's limit and the memory."""
    path: Literal["packed", "swept"]
    bytes: int
    """Peak memory, beyond the model itself."""
    seconds: float
    """Time on the device, without tokenising."""
    tiles: int
    """Pieces of each layer, between which other work can run; 1 for a packed text."""
    tile_tokens: int
    """Most tokens of a piece."""
    keeps_projections: bool
    """Whether there is room to compute each layer's projections only once."""
    max_tokens: int
    max_bytes: int
    tokens_alone: int = 0
    """Tokens of passages that the context of the chunks reads once more, alone. `seconds` includes
    them, `tokens` does not."""
    tokens_read: int = 0
    """Tokens that the device reads within the text: all of them, those of the segments that changed
    since a record, or none where chunks alone are asked for that take nothing from it."""
    ranks: int = 1
    """Ranks that read it together. `bytes`, `seconds` and `tiles` are those of one of them."""


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """The processes that read one long document together, the first one included."""

    asked: int
    present: int


class Outstanding(NamedTuple):
    """Tokens that a device has accepted and has still to read."""

    short: int
    """Tokens of texts that run in batches."""

    long: int
    """Tokens of texts read tile by tile or too long for a batch, and of calls."""

    @property
    def tokens(self) -> int:
        return self.short + self.long


DocumentEvent: TypeAlias = Progress | ChunksReady


@dataclass(frozen=True, kw_only=True)
class Tokenization:
    """The tokens of a text. Numbers are in arrays: Python would search a million objects for
    garbage again and again, and nothing else would run meanwhile."""

    ids: Ids
    offsets: Offsets  # of the original text; (0, 0) for special tokens
    tokens: tuple[str, ...]

    def each(self) -> Iterator[tuple[int, str, int, int]]:
        """The id of each token, its string, and its characters from start to before end."""
        for ids, tokens, starts, ends in self.parts():
            yield from zip(ids, tokens, starts, ends, strict=True)

    def parts(self) -> Iterator[tuple[list[int], tuple[str, ...], list[int], list[int]]]:
        """The same in lists of some thousand tokens each."""
        for first in range(0, len(self.tokens), _TOKENS_AT_ONCE):
            some = slice(first, first + _TOKENS_AT_ONCE)
            starts, ends = self.offsets[some].T.tolist()
            yield self.ids[some].tolist(), self.tokens[some], starts, ends


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """A loaded model, as front ends report it."""

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
    int8_range: float
    """The largest number that int8 can tell, in vectors of all dimensions."""
    chunk_context: Context = "balanced"
    """The context of chunks for which a caller says none."""
    aliases: tuple[str, ...] = ()
