"""The bodies of requests for vectors and tokens."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import ConfigDict, Field

from engine.errors import InvalidInput
from engine.living_types import RecordPrecision
from engine.types import Chunking as EngineChunking
from service.edits import check_num_edits
from service.http.schemas.chunking import Chunking, ChunkingFields, ContextName, Title
from service.http.schemas.fields import (
    AtLeastZero,
    Body,
    Input,
    Text,
    VectorBody,
    VectorFields,
    Whole,
    counted_first,
)


class EmbeddingsBody(VectorBody):
    """OpenAI's embeddings request, and prompt_name, normalize and truncate."""

    input: Input
    user: str | None = Field(None, description="Accepted for OpenAI's clients; not used.")


WithVector: TypeAlias = Annotated[
    bool,
    Field(
        description="Whether to answer the document's own vector. Without it, a document in the "
        "context linked, opening or alone is not read as a whole, at half the cost; others are "
        "read as before. Not with a record, nor without chunks."
    ),
]


class DocumentBody(VectorBody):
    """One document, however long."""

    text: Text
    title: Title = None
    chunking: Chunking = Chunking()
    vector: WithVector = True
    record: bool = Field(
        False,
        description="Read the document in segments, and answer with a `record` from which PATCH "
        "reads it on after a change.",
    )
    record_precision: RecordPrecision | None = Field(
        None, description='Of the record\'s states: "float32" (default), or half of its bytes.'
    )
    fold: bool = Field(
        False,
        description="Keep the record small at any length, for a document that only grows: an edit "
        "before its end reads all of it.",
    )

    def chunk_plan(self) -> EngineChunking | None:
        return self.chunking.plan()


class EditBody(Body):
    """Characters of the text that are replaced; start = end inserts before them."""

    start: AtLeastZero
    end: AtLeastZero
    text: str = ""


Edits: TypeAlias = Annotated[list[EditBody] | None, counted_first(check_num_edits)]


class UpdateBody(VectorBody):
    """A document as it is now, and its record of what was read before."""

    record: str = Field(description="Base64, as POST or PATCH answered it last.")
    text: Text
    edits: Edits = Field(
        None,
        description="Changes of `text`, which is then the document before them. Characters count "
        "in that text; edits may not overlap.",
    )
    title: str | None = Field(
        None, description="Replaces the record's title; an empty one removes it."
    )
    chunking: Chunking | None = Field(None, description="Replaces the record's chunking.")
    max_staleness: float | None = Field(
        None,
        description="0 to 1. Kept segments that may be staler than this are read again too.",
    )
    exact: bool = Field(False, description="Read every segment again.")

    def chunk_plan(self) -> EngineChunking | None:
        if self.chunking is None:
            return None
        if "type" in self.chunking.model_fields_set and self.chunking.type == "none":
            raise InvalidInput(
                "an update keeps the chunks of its record or gets others; for a document without "
                "chunks, send a POST",
                code="invalid_chunking",
                param="chunking.type",
                limit="fixed, sentences, headings",
                actual="none",
            )
        return self.chunking.plan()


class DocumentQuery(VectorFields, ChunkingFields):
    """The same fields in the query string, for a document whose text is the body; no `spans`."""

    model_config = ConfigDict(extra="forbid")

    title: Title = None
    vector: WithVector = True
    chunking: Literal["none", "fixed", "sentences", "headings"] = Field(
        "none", description="The type of chunks."
    )

    def chunk_plan(self) -> EngineChunking | None:
        given = {name: getattr(self, name) for name in ChunkingFields.model_fields}
        return Chunking.model_validate({"type": self.chunking, **given}).plan()


class PlanBody(Body):
    """A text, or how many tokens it would have. With a record, the text's update."""

    tokens: Whole | None = Field(None, description="Special tokens included.")
    text: str | None = None
    context: ContextName | None = Field(
        None, description="Plan a document with chunks of 256 tokens and this context."
    )
    vector: bool = Field(
        True, description="With a context: whether the document's own vector is asked for, too."
    )
    record: str | None = Field(
        None, description="Base64: plan to read the text on from it, in its chunks and context."
    )
    edits: Edits = Field(
        None, description="With a record: changes of `text`, which is then the document before."
    )
    model: str | None = None


class TokenizeBody(Body):
    text: Text
    model: str | None = None
    open: bool = Field(
        False,
        description="Keep the text for a while; requests about its attention name its `document`.",
    )
