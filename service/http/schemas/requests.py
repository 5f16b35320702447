"""The bodies of requests, in the order of the routes.

Unknown fields and wrong types are refused: a typo is an error. The engine checks the bounds that
it knows (lengths, counts, dimensions), once for HTTP, gRPC and Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, TypeAlias, cast

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from engine.errors import InvalidInput
from engine.platform.device import DTYPES
from engine.text.chunking import MOST_OPENING, OPENING_TOKENS
from engine.types import (
    OF_ALL_CHUNKS,
    ChunkPlan,
    Context,
    EmbedOptions,
    HeadingFormat,
    HeadingPlan,
    MapOptions,
    ModelInfo,
    SentencePlan,
    Span,
    SpanPlan,
    TextInput,
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
from service.benchmarks.suites import KNOWN_ATTENTIONS, SUITES, BenchmarkPlan
from service.http.json_response import EncodingFormat

_EXACT = 2**53
"""From here on, a float no longer tells which whole number was meant."""

_DEFAULTS = EmbedOptions()

_NULL = {"type": "null"}
_TEXT: dict[str, Any] = {"type": "string", "minLength": 1}
_IDS: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}}
_TEXTS: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"anyOf": [_TEXT, _IDS]}}


def _accept_whole_float(value: Any) -> Any:
    """JSON has one kind of number, and some languages write 512 as 512.0."""
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) < _EXACT
    return int(value) if is_whole else value


def _integer_schema(least: int = 1 - _EXACT) -> WithJsonSchema:
    """Bounds for the schema alone; the engine checks them."""
    return WithJsonSchema({"type": "integer", "minimum": least, "maximum": _EXACT - 1})


AtLeastOne: TypeAlias = Annotated[int, BeforeValidator(_accept_whole_float), _integer_schema(1)]
AtLeastZero: TypeAlias = Annotated[int, BeforeValidator(_accept_whole_float), _integer_schema(0)]
Whole: TypeAlias = Annotated[int, BeforeValidator(_accept_whole_float), _integer_schema()]
Text: TypeAlias = Annotated[str, WithJsonSchema(_TEXT)]

# `as_inputs` reads it: pydantic would try a union branch by branch, and report a baffling error.
Input: TypeAlias = Annotated[Any, WithJsonSchema({"anyOf": [_TEXT, _IDS, _TEXTS]})]

Statistic: TypeAlias = Literal["mass", "mean", "sum"]


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class VectorFields(BaseModel):
    """How texts become vectors."""

    model: str | None = Field(None, description="One of GET /v1/models; the first when absent.")
    encoding_format: EncodingFormat = Field(
        "float", description="Numbers, or base64 of little-endian float32."
    )
    dimensions: AtLeastOne | None = Field(
        None, description="Keep only this many leading numbers of a vector, then normalise."
    )
    prompt_name: str | None = Field(None, description="One of the model's own prompts.")
    normalize: bool = _DEFAULTS.normalize
    truncate: Literal["error", "start", "end"] = Field(
        _DEFAULTS.truncate,
        description="What to do with a text that is too long: refuse it, or drop one end of it.",
    )
    priority: Literal["normal", "background"] = Field(
        _DEFAULTS.priority, description="Background texts yield to those that arrive soon after."
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
    """The same fields in a JSON body."""


class EmbeddingsBody(VectorBody):
    """OpenAI's embeddings request, and prompt_name, normalize and truncate."""

    input: Input
    user: str | None = Field(None, description="Accepted for OpenAI's clients; not used.")


class SpanBody(Body):
    """A half-open range of characters, which are Unicode code points."""

    start: AtLeastZero
    end: AtLeastZero


Title: TypeAlias = Annotated[
    str | None,
    Field(description="Title or metadata, at most 512 tokens, used in place of the opening."),
]
ChunkingType: TypeAlias = Literal["none", "fixed", "sentences", "headings", "spans"]


class ChunkingFields(BaseModel):
    """Options of chunking; each type has some of them."""

    tokens: AtLeastOne | None = Field(default=None, description="fixed: tokens per chunk (256).")
    overlap: AtLeastZero | None = Field(
        default=None, description="fixed: tokens shared with the previous chunk (0)."
    )
    min_tokens: AtLeastOne | None = Field(
        default=None, description="sentences: joined until a chunk has this many tokens (1)."
    )
    max_tokens: AtLeastOne | None = Field(
        default=None, description="sentences, headings: longer passages are split (256, 512)."
    )
    format: HeadingFormat | None = Field(
        default=None, description='headings: their format ("auto" detects it).'
    )
    context: Context | None = Field(
        default=None,
        description="late: the late chunk. alone: the passage alone. balanced (the default): half "
        "of each and a share of the opening. title: with the opening at weight 1.",
    )
    opening: float | None = Field(
        default=None,
        ge=0,
        le=MOST_OPENING,
        description=f"Weight of the vector of the document's first {OPENING_TOKENS} tokens in each "
        "chunk's vector, or of the title's: for chunks that do not name their subject.",
    )
    alone: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Weight, in each vector, of the passage embedded alone (as context says).",
    )


class Chunking(Body, ChunkingFields):
    """How a document is cut into late chunks: not at all, into fixed numbers of tokens, sentences,
    sections, or the caller's own spans, which may overlap and come in any order."""

    type: ChunkingType = "none"
    spans: list[SpanBody] | None = Field(default=None, description="spans: ranges of characters.")

    def plan(self) -> EngineChunking | None:
        """What the engine is asked for. Raises InvalidInput for an option of another type."""
        given = {
            name: getattr(self, name)
            for name in sorted(self.model_fields_set - {"type"})
            if getattr(self, name) is not None
        }
        for name in given:
            if name not in _CHUNKING_FIELDS[self.type]:
                # Not InvalidField: the body is valid by the schema of openapi.json.
                raise InvalidInput(
                    f"chunking.{name} does not go with type {self.type}",
                    code="unknown_field",
                    param=f"chunking.{name}",
                    limit=", ".join(_CHUNKING_FIELDS[self.type]),
                )
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
    title: Title = None
    chunking: Chunking = Chunking()

    def chunk_plan(self) -> EngineChunking | None:
        return self.chunking.plan()


class DocumentQuery(VectorFields, ChunkingFields):
    """The same fields in the query string, for a document whose text is the body; no `spans`."""

    model_config = ConfigDict(extra="forbid")

    title: Title = None
    chunking: Literal["none", "fixed", "sentences", "headings"] = Field(
        "none", description="The type of chunks."
    )

    def chunk_plan(self) -> EngineChunking | None:
        given = {name: getattr(self, name) for name in ChunkingFields.model_fields}
        return Chunking.model_validate({"type": self.chunking, **given}).plan()


class TokenSpanBody(Body):
    """A half-open range of tokens."""

    start: Whole
    end: Whole

    def span(self) -> Span:
        return Span(self.start, self.end)


class OpenDocumentBody(Body):
    """A text, or a document that an earlier request opened."""

    text: str | None = None
    document: str | None = Field(None, description="The `document` of an earlier answer.")
    model: str | None = None


class DiagnosticsBody(OpenDocumentBody):
    """What to measure about a text's attention; everything by default."""

    layers: list[AtLeastZero] | None = None
    heads: list[AtLeastZero] | None = None
    instruments: list[str] | None = None
    mode: str = Field(
        "auto",
        description="For quantities that need all pairs of tokens: auto (exact for short texts, "
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
        description="A cell's value: mass (attention that its mean row gives it; a whole row sums "
        "to 1), mean (of its entries) or sum (of its entries).",
    )
    format: Literal["json", "png"] = "json"
    encoding_format: EncodingFormat = Field(
        "float", description="Lists of numbers, or base64 of little-endian float32, row by row."
    )
    links: Whole = Field(MapOptions.links, description="How many of the strongest single entries.")
    topics: Whole = Field(MapOptions.topics, description="How many of LLN's channels.")
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
    """A document to segment at several scales."""

    scales: list[Whole] | None = Field(
        None, description="Tokens of a typical segment, from coarse to fine; chosen when absent."
    )


def _some(item: dict[str, Any], most: int) -> dict[str, Any]:
    """A list, or null. For the schema alone: `checked_plan` checks the bounds, also for gRPC."""
    return {"anyOf": [{"type": "array", "items": item, "minItems": 1, "maxItems": most}, _NULL]}


def _number(kind: str, least: float, most: float) -> dict[str, Any]:
    return {"anyOf": [{"type": kind, "minimum": least, "maximum": most}, _NULL]}


class BenchmarkBody(Body):
    """A benchmark of this machine. Omitted fields take the suite's own values."""

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


class PlanBody(Body):
    """A text, or how many tokens it would have."""

    tokens: Whole | None = Field(None, description="Special tokens included.")
    text: str | None = None
    context: Context | None = Field(
        None, description="Plan a document with chunks of 256 tokens and this context."
    )
    model: str | None = None


class TokenizeBody(Body):
    text: Text
    model: str | None = None
    open: bool = Field(
        False,
        description="Keep the text for a while; requests about its attention name its `document`.",
    )


class TokenStatesBody(Body):
    """text-embeddings-inference's request for the state of every token, and `model`."""

    inputs: Input
    model: str | None = Field(None, description="One of GET /v1/models; the first when absent.")
    truncate: bool | None = Field(
        None, description="Cut a text that is too long instead of refusing it."
    )
    truncation_direction: Literal["right", "left", "Right", "Left"] = "right"
    prompt_name: str | None = Field(None, description="One of the model's own prompts.")

    def options(self) -> EmbedOptions:
        truncate: Truncate = "error"
        if self.truncate:
            truncate = "start" if self.truncation_direction.lower() == "left" else "end"
        return EmbedOptions(prompt_name=self.prompt_name, truncate=truncate, normalize=False)


class EmbedBody(TokenStatesBody):
    """text-embeddings-inference's request for one vector per text, and `model`."""

    normalize: bool = _DEFAULTS.normalize
    dimensions: AtLeastOne | None = Field(
        None, description="Keep only this many leading numbers of a vector, then normalise."
    )

    def options(self) -> EmbedOptions:
        return replace(super().options(), normalize=self.normalize, dimensions=self.dimensions)


def as_inputs(value: Any, param: str) -> Sequence[TextInput]:
    """The texts of a request, each a string or token ids; a single one becomes a list of one.

    The engine checks the items.
    """
    if isinstance(value, str):
        return [value]
    if isinstance(value, np.ndarray):  # token ids of a large body
        return [cast(Sequence[int], value)]
    if not isinstance(value, list):
        raise InvalidInput(
            f"{param} must be a string, token ids, or a list of either, got {_json_type(value)}",
            code="invalid_type",
            param=param,
            actual=_json_type(value),
        )
    if value and all(type(item) is int for item in value):
        return [value]
    return cast(Sequence[TextInput], value)


def _json_type(value: Any) -> str:
    names = {type(None): "null", bool: "boolean", dict: "object", int: "number", float: "number"}
    return names.get(type(value), type(value).__name__)
