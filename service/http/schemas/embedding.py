"""The bodies of requests for vectors and tokens."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field

from engine.types import Chunking as EngineChunking
from engine.types import Context
from service.http.schemas.chunking import Chunking, ChunkingFields, Title
from service.http.schemas.fields import Body, Input, Text, VectorBody, VectorFields, Whole


class EmbeddingsBody(VectorBody):
    """OpenAI's embeddings request, and prompt_name, normalize and truncate."""

    input: Input
    user: str | None = Field(None, description="Accepted for OpenAI's clients; not used.")


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
