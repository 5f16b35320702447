"""The parts of a request that cut a document into chunks."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias, get_args

from pydantic import AfterValidator, BaseModel, Field, WithJsonSchema

from engine.errors import InvalidInput
from engine.text.chunking import MOST_OPENING, OPENING_TOKENS, check_count
from engine.types import (
    OF_ALL_CHUNKS,
    ChunkPlan,
    Context,
    HeadingFormat,
    HeadingPlan,
    SentencePlan,
    Span,
    SpanPlan,
)
from engine.types import Chunking as EngineChunking
from service.http.schemas.fields import AtLeastOne, AtLeastZero, Body, counted_first


def _one_of(kind: Any) -> WithJsonSchema:
    """Names for the schema alone; the engine checks them."""
    return WithJsonSchema({"type": "string", "enum": list(get_args(kind))})


def _share(most: float) -> WithJsonSchema:
    """Bounds for the schema alone; the engine checks them."""
    return WithJsonSchema({"type": "number", "minimum": 0, "maximum": most})


ContextName: TypeAlias = Annotated[str, _one_of(Context)]


class SpanBody(Body):
    """A half-open range of characters, which are Unicode code points."""

    start: AtLeastZero
    end: AtLeastZero


# Tens of thousands of bodies, kept as long as the request, would be searched for garbage.
_SpanRead: TypeAlias = Annotated[SpanBody, AfterValidator(lambda body: Span(body.start, body.end))]

Title: TypeAlias = Annotated[
    str | None,
    Field(
        description="Title or metadata, at most 512 tokens. Without one: the title that the text "
        "begins with, or its first words."
    ),
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
    format: Annotated[str, _one_of(HeadingFormat)] | None = Field(
        default=None, description='headings: their format ("auto" detects it).'
    )
    context: ContextName | None = Field(
        default=None,
        description="Default: the model's own, chunk_context in /v1/models. "
        "late: the late chunk. alone: the passage alone. balanced: half "
        "of each and a share of the opening. title: with the opening at weight 1. opening: the "
        "passage alone and that share of the opening. one_pass: the late chunk and a share of the "
        "opening, so that nothing is read twice. linked: as opening, but passages know of each "
        "other by LLN.",
    )
    opening: Annotated[float, _share(MOST_OPENING)] | None = Field(
        default=None,
        description="Weight in each chunk's vector of that of the document's title, told or found "
        f"at its beginning, or else of its first {OPENING_TOKENS} tokens: for chunks that do not "
        "name their subject.",
    )
    alone: Annotated[float, _share(1)] | None = Field(
        default=None,
        description="Weight, in each vector, of the passage embedded alone (as context says).",
    )


class Chunking(Body, ChunkingFields):
    """How a document is cut into late chunks: not at all, into fixed numbers of tokens, sentences,
    sections, or the caller's own spans, which may overlap and come in any order."""

    type: ChunkingType = "none"
    spans: Annotated[list[_SpanRead] | None, counted_first(check_count)] = Field(
        default=None, description="spans: ranges of characters."
    )

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
                    limit=", ".join(_CHUNKING_FIELDS[self.type]) or None,
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
                if self.spans is None:  # an empty list asks for no chunks
                    raise InvalidInput(
                        "chunking.spans is required with type spans",
                        code="missing_field",
                        param="chunking.spans",
                    )
                return SpanPlan(**given | {"spans": tuple(self.spans)})


_CHUNKING_FIELDS: dict[ChunkingType, tuple[str, ...]] = {
    "none": (),
    "fixed": ("tokens", "overlap", *OF_ALL_CHUNKS),
    "sentences": ("min_tokens", "max_tokens", *OF_ALL_CHUNKS),
    "headings": ("max_tokens", "format", *OF_ALL_CHUNKS),
    "spans": ("spans", *OF_ALL_CHUNKS),
}
