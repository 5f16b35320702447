"""What requests may hold. Unknown fields and loose types are refused, so that typos are heard.

Bounds that the engine knows (lengths, counts, dimensions) are checked there, once for all faces.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from engine.types import Chunking as EngineChunking
from engine.types import (
    ChunkPlan,
    EmbedOptions,
    HeadingFormat,
    HeadingPlan,
    MapOptions,
    SentencePlan,
    Span,
    SpanPlan,
)
from service.errors import InvalidField

_TEXT_OR_IDS = [{"type": "string"}, {"type": "array", "items": {"type": "integer"}}]

# Left to the engine: a union of lists would be tried branch by branch, with a baffling error.
Input: TypeAlias = Annotated[
    Any,
    WithJsonSchema({"anyOf": [*_TEXT_OR_IDS, {"type": "array", "items": {"anyOf": _TEXT_OR_IDS}}]}),
]
EncodingFormat: TypeAlias = Literal["float", "base64"]
AttentionName: TypeAlias = Literal["softmax", "lln", "lln_diag", "block_diagonal"]

_DEFAULTS = EmbedOptions()


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class VectorFields(BaseModel):
    """The fields that say how texts become vectors."""

    model: str | None = Field(None, description="One of GET /v1/models; the first when absent.")
    encoding_format: EncodingFormat = Field(
        "float", description="Numbers, or base64 of little-endian float32."
    )
    dimensions: int | None = Field(
        None, description="Keep the first so many numbers, then normalise."
    )
    prompt_name: str | None = Field(None, description="A prompt of the model's own.")
    normalize: bool = _DEFAULTS.normalize
    truncate: Literal["error", "start", "end"] = Field(
        _DEFAULTS.truncate,
        description="What to do with a text that is too long: refuse it, or drop one end of it.",
    )

    def options(self) -> EmbedOptions:
        return EmbedOptions(
            prompt_name=self.prompt_name,
            dimensions=self.dimensions,
            normalize=self.normalize,
            truncate=self.truncate,
        )


class VectorBody(Body, VectorFields):
    """The same as part of a JSON body."""


class EmbeddingsBody(VectorBody):
    """OpenAI's embeddings request, and prompt_name, normalize and truncate."""

    input: Input
    user: str | None = Field(None, description="Accepted for OpenAI's clients; not used.")


class SpanBody(Body):
    """A half-open range of characters, which are Unicode code points."""

    start: int
    end: int


ChunkingType: TypeAlias = Literal["none", "fixed", "sentences", "headings", "spans"]


class ChunkingFields(BaseModel):
    """The sizes and forms of chunks; each type has some of them."""

    tokens: int | None = Field(default=None, description="fixed: tokens of a chunk (256).")
    overlap: int | None = Field(
        default=None, description="fixed: tokens shared with the one before (0)."
    )
    min_tokens: int | None = Field(
        default=None, description="sentences: they are joined until there are so many tokens (1)."
    )
    max_tokens: int | None = Field(
        default=None, description="sentences, headings: longer passages are cut (256, 512)."
    )
    format: HeadingFormat | None = Field(
        default=None, description='headings: how they are written ("auto" looks at the text).'
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
                raise InvalidField(
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
                return SpanPlan(spans=tuple(Span(s.start, s.end) for s in self.spans or ()))


_CHUNKING_FIELDS: dict[ChunkingType, tuple[str, ...]] = {
    "none": (),
    "fixed": ("tokens", "overlap"),
    "sentences": ("min_tokens", "max_tokens"),
    "headings": ("max_tokens", "format"),
    "spans": ("spans",),
}


class DocumentBody(VectorBody):
    """One document, however long."""

    text: str
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
    text: str
    model: str | None = None
    open: bool = Field(
        False,
        description="Keep the text open for a while, to ask about its attention by `document`.",
    )


class TokenSpanBody(Body):
    """A half-open range of tokens."""

    start: int
    end: int

    def span(self) -> Span:
        return Span(self.start, self.end)


class OpenDocumentBody(Body):
    """A text, or a document opened by an earlier request with it."""

    text: str | None = None
    document: str | None = Field(None, description="The `document` of an earlier answer.")
    model: str | None = None


class DiagnosticsBody(OpenDocumentBody):
    """What to measure of a text's attention; everything when nothing is named."""

    layers: list[int] | None = None
    heads: list[int] | None = None
    instruments: list[str] | None = None


class AttentionMapBody(OpenDocumentBody):
    """Which head to map, which window of it, and how."""

    layer: int
    head: int
    rows: TokenSpanBody | None = Field(None, description="Queries shown; all when absent.")
    columns: TokenSpanBody | None = Field(None, description="Keys shown; all when absent.")
    height: int = Field(MapOptions.height, description="Cells, or pixels of a PNG.")
    width: int = Field(MapOptions.width, description="Cells, or pixels of a PNG.")
    statistic: Literal["mass", "mean", "sum"] = Field(
        "mass",
        description="Of each cell: attention its mean row gives it (a whole row sums to 1), mean "
        "entry, or sum.",
    )
    format: Literal["json", "png"] = "json"
    encoding_format: EncodingFormat = Field(
        "float", description="Lists of numbers, or base64 of little-endian float32, row by row."
    )
    links: int = Field(MapOptions.links, description="So many of the strongest single entries.")
    topics: int = Field(MapOptions.topics, description="So many of LLN's channels.")
    topic_tokens: int = Field(MapOptions.topic_tokens, description="Tokens listed for each topic.")

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

    scales: list[int] | None = Field(
        None, description="Tokens of a typical segment, from coarse to fine; chosen when absent."
    )


class BenchmarkBody(Body):
    """A benchmark of this machine."""

    suite: Literal["encoder"] = "encoder"
    lengths: list[Annotated[int, Field(ge=1, le=131_072)]] = Field(
        default=[512, 2048, 8192], min_length=1, max_length=12
    )
    attentions: list[AttentionName] = Field(
        default=["softmax", "lln_diag"], min_length=1, max_length=4
    )
    repeats: int = Field(3, ge=1, le=20)
    model: str | None = None
