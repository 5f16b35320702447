"""What requests may hold. Unknown fields and loose types are refused, so that typos are heard.

Bounds that the engine knows (lengths, counts, dimensions) are checked there, once for all faces.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from engine.device import DTYPES
from engine.errors import InvalidInput
from engine.text.chunks import MOST_OPENING, OPENING_TOKENS
from engine.types import (
    OF_ALL_CHUNKS,
    ChunkPlan,
    EmbedOptions,
    HeadingFormat,
    HeadingPlan,
    MapOptions,
    ModelInfo,
    SentencePlan,
    Span,
    SpanPlan,
    Truncate,
)
from engine.types import Chunking as EngineChunking
from service.benchmarks.plan import (
    DEFAULT_SUITE,
    MAX_ATTENTIONS,
    MAX_LENGTH,
    MAX_LENGTHS,
    MAX_REPEATS,
    MAX_SECONDS,
    MIN_SECONDS,
    checked_plan,
)
from service.benchmarks.suite import BenchmarkPlan
from service.benchmarks.suites import KNOWN_ATTENTIONS, SUITES

_TEXT: dict[str, Any] = {"type": "string", "minLength": 1}
_IDS: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}}
_TEXTS: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"anyOf": [_TEXT, _IDS]}}

# Left to the engine: a union of lists would be tried branch by branch, with a baffling error.
Input: TypeAlias = Annotated[
    Any,
    WithJsonSchema({"anyOf": [_TEXT, _IDS, _TEXTS]}),
]
Text: TypeAlias = Annotated[str, WithJsonSchema(_TEXT)]
EncodingFormat: TypeAlias = Literal["float", "base64"]
Statistic: TypeAlias = Literal["mass", "mean", "sum"]


_EXACT = 2**53  # beyond it, a float does not say which whole number was meant


def _whole(value: Any) -> Any:
    """JSON has one kind of number, and some languages write 512 as 512.0."""
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) < _EXACT
    return int(value) if is_whole else value


def _whole_number(least: int = 1 - _EXACT) -> WithJsonSchema:
    """For the schema alone: the engine checks, once for all faces."""
    return WithJsonSchema({"type": "integer", "minimum": least, "maximum": _EXACT - 1})


AtLeastOne: TypeAlias = Annotated[int, BeforeValidator(_whole), _whole_number(1)]
AtLeastZero: TypeAlias = Annotated[int, BeforeValidator(_whole), _whole_number(0)]
Whole: TypeAlias = Annotated[int, BeforeValidator(_whole), _whole_number()]

_DEFAULTS = EmbedOptions()
_NULL = {"type": "null"}


def _some(item: dict[str, Any], most: int) -> dict[str, Any]:
    """A list, or null. For fields whose bounds are checked where both protocols pass."""
    return {"anyOf": [{"type": "array", "items": item, "minItems": 1, "maxItems": most}, _NULL]}


def _number(kind: str, least: float, most: float) -> dict[str, Any]:
    return {"anyOf": [{"type": kind, "minimum": least, "maximum": most}, _NULL]}


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class VectorFields(BaseModel):
    """The fields that say how texts become vectors."""

    model: str | None = Field(None, description="One of GET /v1/models; the first when absent.")
    encoding_format: EncodingFormat = Field(
        "float", description="Numbers, or base64 of little-endian float32."
    )
    dimensions: AtLeastOne | None = Field(
        None, description="Keep the first so many numbers, then normalise."
    )
    prompt_name: str | None = Field(None, description="A prompt of the model's own.")
    normalize: bool = _DEFAULTS.normalize
    truncate: Literal["error", "start", "end"] = Field(
        _DEFAULTS.truncate,
        description="What to do with a text that is too long: refuse it, or drop one end of it.",
    )
    priority: Literal["normal", "background"] = Field(
        _DEFAULTS.priority, description="Background texts let those go first that come soon after."
    )

    def options(self) -> EmbedOptions:
        return EmbedOptions(
            prompt_name=self.prompt_name,
            dimensions=self.dimensions,
            normalize=self.normalize,
            truncate=self.truncate,
            priority=self.priority,
        )


class VectorBody(Body, VectorFields):
    """The same as part of a JSON body."""


class EmbeddingsBody(VectorBody):
    """OpenAI's embeddings request, and prompt_name, normalize and truncate."""

    input: Input
    user: str | None = Field(None, description="Accepted for OpenAI's clients; not used.")


class SpanBody(Body):
    """A half-open range of characters, which are Unicode code points."""

    start: AtLeastZero
    end: AtLeastZero


ChunkingType: TypeAlias = Literal["none", "fixed", "sentences", "headings", "spans"]


class ChunkingFields(BaseModel):
    """The sizes and forms of chunks; each type has some of them."""

    tokens: AtLeastOne | None = Field(default=None, description="fixed: tokens of a chunk (256).")
    overlap: AtLeastZero | None = Field(
        default=None, description="fixed: tokens shared with the one before (0)."
    )
    min_tokens: AtLeastOne | None = Field(
        default=None, description="sentences: they are joined until there are so many tokens (1)."
    )
    max_tokens: AtLeastOne | None = Field(
        default=None, description="sentences, headings: longer passages are cut (256, 512)."
    )
    format: HeadingFormat | None = Field(
        default=None, description='headings: how they are written ("auto" looks at the text).'
    )
    opening: float | None = Field(
        default=None,
        ge=0,
        le=MOST_OPENING,
        description="How much of the vector of the document's first "
        f"{OPENING_TOKENS} tokens is added to each chunk's, for passages that do not say "
        "themselves what document they are of (0).",
    )
    alone: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="How much of each chunk's vector, and of the opening's, is that of the passage "
        "read alone, as a text of its own (0).",
    )


class Chunking(Body, ChunkingFields):
    """How a document is cut into late chunks: not at all, into fixed numbers of tokens, sentences,
    sections, or the caller's own spans, which may overlap and come in any order."""

    type: ChunkingType = "none"
    spans: list[SpanBody] | None = Field(
        default=None, description="spans: of characters of the text."
    )

    def plan(self) -> EngineChunking | None:
        given = {
            name: getattr(self, name)
            for name in sorted(self.model_fields_set - {"type"})
            if getattr(self, name) is not None
        }
        for name in given:
            if name not in _CHUNKING_FIELDS[self.type]:
                # Not InvalidField: the body has the shape that openapi.json asks for.
                raise InvalidInput(
                    f"chunking.{name} does not go with type {self.type}",
                    code="unknown_field",
                    param=f"chunking.{name}",
                    limit=", ".join(_CHUNKING_FIELDS[self.type]),
                )
        return self._plan_of(given)

    def _plan_of(self, given: dict[str, Any]) -> EngineChunking | None:
        match self.type:
            case "none":
                return None
            case "fixed":
                return ChunkPlan(**given)
            case "sentences":
                return SentencePlan(**given)
            case "headings":
                return HeadingPlan(**given)
            case "spans":
                spans = tuple(Span(s.start, s.end) for s in self.spans or ())
                return SpanPlan(**given | {"spans": spans})


_CHUNKING_FIELDS: dict[ChunkingType, tuple[str, ...]] = {
    "none": (),
    "fixed": ("tokens", "overlap", *OF_ALL_CHUNKS),
    "sentences": ("min_tokens", "max_tokens", *OF_ALL_CHUNKS),
    "headings": ("max_tokens", "format", *OF_ALL_CHUNKS),
    "spans": ("spans", *OF_ALL_CHUNKS),
}


class DocumentBody(VectorBody):
    """One document, however long."""

    text: Text
    chunking: Chunking = Chunking()

    def chunk_plan(self) -> EngineChunking | None:
        return self.chunking.plan()


class DocumentQuery(VectorFields, ChunkingFields):
    """The same for a document whose text is the body: all but `spans`, in the query string."""

    model_config = ConfigDict(extra="forbid")

    chunking: Literal["none", "fixed", "sentences", "headings"] = Field(
        "none", description="The type of chunks."
    )

    def chunk_plan(self) -> EngineChunking | None:
        given = {name: getattr(self, name) for name in ChunkingFields.model_fields}
        return Chunking.model_validate({"type": self.chunking, **given}).plan()


class TokenizeBody(Body):
    text: Text
    model: str | None = None
    open: bool = Field(
        False,
        description="Keep the text open for a while, to ask about its attention by `document`.",
    )


class PlanBody(Body):
    """A text, or how many tokens it would have."""

    tokens: Whole | None = Field(None, description="Special tokens included.")
    text: str | None = None
    model: str | None = None


class TokenSpanBody(Body):
    """A half-open range of tokens."""

    start: Whole
    end: Whole

    def span(self) -> Span:
        return Span(self.start, self.end)


class OpenDocumentBody(Body):
    """A text, or a document opened by an earlier request with it."""

    text: str | None = None
    document: str | None = Field(None, description="The `document` of an earlier answer.")
    model: str | None = None


class DiagnosticsBody(OpenDocumentBody):
    """What to measure of a text's attention; everything when nothing is named."""

    layers: list[AtLeastZero] | None = None
    heads: list[AtLeastZero] | None = None
    instruments: list[str] | None = None
    mode: str = Field(
        "auto",
        description="Where exactness costs all pairs of tokens: auto (exact for short texts, "
        "sampled with a stated error beyond), exact (refused beyond a budget), sampled. Some "
        "quantities are estimates in every mode, with their error: softmax's stationary (iterated) "
        "and, beyond 128 tokens, effective_rank with its singular values and stable rank (random "
        "vectors), spectral_gap (iterated; further in mode exact) and the eigenvalues beside "
        "attention_fisher (a few rows).",
        json_schema_extra={"enum": ["auto", "exact", "sampled"]},
    )


class AttentionMapBody(OpenDocumentBody):
    """Which head to map, which window of it, and how."""

    layer: Whole
    head: Whole
    rows: TokenSpanBody | None = Field(None, description="Queries shown; all when absent.")
    columns: TokenSpanBody | None = Field(None, description="Keys shown; all when absent.")
    height: Whole = Field(MapOptions.height, description="Cells, or pixels of a PNG.")
    width: Whole = Field(MapOptions.width, description="Cells, or pixels of a PNG.")
    statistic: Statistic = Field(
        "mass",
        description="Of each cell: attention its mean row gives it (a whole row sums to 1), mean "
        "entry, or sum.",
    )
    format: Literal["json", "png"] = "json"
    encoding_format: EncodingFormat = Field(
        "float", description="Lists of numbers, or base64 of little-endian float32, row by row."
    )
    links: Whole = Field(MapOptions.links, description="So many of the strongest single entries.")
    topics: Whole = Field(MapOptions.topics, description="So many of LLN's channels.")
    topic_tokens: Whole = Field(
        MapOptions.topic_tokens, description="Tokens listed for each topic."
    )

    def options(self) -> MapOptions:
        return MapOptions(
            layer=self.layer,
            head=self.head,
            rows=None if self.rows is None else self.rows.span(),
            columns=None if self.columns is None else self.columns.span(),
            height=self.height,
            width=self.width,
            links=self.links,
            topics=self.topics,
            topic_tokens=self.topic_tokens,
        )


class StructureBody(OpenDocumentBody):
    """A document whose parts are looked for, at several scales."""

    scales: list[Whole] | None = Field(
        None, description="Tokens of a typical segment, from coarse to fine; chosen when absent."
    )


class BenchmarkBody(Body):
    """A benchmark of this machine. Left out fields take the suite's own values."""

    suite: Annotated[str, WithJsonSchema({"type": "string", "enum": list(SUITES)})] = DEFAULT_SUITE
    lengths: Annotated[
        list[Whole] | None,
        WithJsonSchema(
            _some({"type": "integer", "minimum": 1, "maximum": MAX_LENGTH}, MAX_LENGTHS)
        ),
    ] = None
    attentions: Annotated[
        list[str] | None,
        WithJsonSchema(_some({"type": "string", "enum": list(KNOWN_ATTENTIONS)}, MAX_ATTENTIONS)),
    ] = None
    dtypes: Annotated[
        list[str] | None,
        WithJsonSchema(_some({"type": "string", "enum": list(DTYPES)}, len(DTYPES))),
    ] = None
    repeats: Annotated[Whole | None, WithJsonSchema(_number("integer", 1, MAX_REPEATS))] = None
    seconds: Annotated[
        float | None, WithJsonSchema(_number("number", MIN_SECONDS, MAX_SECONDS))
    ] = None
    training: bool | None = None
    model: str | None = None

    def plan(self, model: ModelInfo) -> BenchmarkPlan:
        return checked_plan(
            model,
            suite=self.suite,
            lengths=self.lengths,
            attentions=self.attentions,
            dtypes=self.dtypes,
            repeats=self.repeats,
            seconds=self.seconds,
            training=self.training,
        )


class TokenStatesBody(Body):
    """text-embeddings-inference's request for the state of every token, and `model`."""

    inputs: Input
    model: str | None = Field(None, description="One of GET /v1/models; the first when absent.")
    truncate: bool | None = Field(None, description="Cut a text that is too long, not refuse it.")
    truncation_direction: Literal["right", "left", "Right", "Left"] = "right"
    prompt_name: str | None = Field(None, description="A prompt of the model's own.")

    def options(self) -> EmbedOptions:
        return EmbedOptions(
            prompt_name=self.prompt_name, truncate=self._truncate(), normalize=False
        )

    def _truncate(self) -> Truncate:
        if not self.truncate:
            return "error"
        return "start" if self.truncation_direction.lower() == "left" else "end"


class EmbedBody(TokenStatesBody):
    """text-embeddings-inference's request for one vector a text, and `model`."""

    normalize: bool = _DEFAULTS.normalize
    dimensions: AtLeastOne | None = Field(
        None, description="Keep the first so many numbers, then normalise."
    )

    def options(self) -> EmbedOptions:
        return replace(super().options(), normalize=self.normalize, dimensions=self.dimensions)
