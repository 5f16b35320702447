"""What requests may hold. Unknown fields and loose types are refused, so that typos are heard.

Bounds that the engine knows (lengths, counts, dimensions) are checked there, once for all faces.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from engine.device import DTYPES
from engine.types import ChunkPlan, EmbedOptions, ModelInfo
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
from service.benchmarks.suites import SUITES

_TEXT_OR_IDS = [{"type": "string"}, {"type": "array", "items": {"type": "integer"}}]

# Left to the engine: a union of lists would be tried branch by branch, with a baffling error.
Input: TypeAlias = Annotated[
    Any,
    WithJsonSchema({"anyOf": [*_TEXT_OR_IDS, {"type": "array", "items": {"anyOf": _TEXT_OR_IDS}}]}),
]
EncodingFormat: TypeAlias = Literal["float", "base64"]

_DEFAULTS = EmbedOptions()
_NULL = {"type": "null"}


def _some(item: dict[str, Any], most: int) -> dict[str, Any]:
    """A list, or null. For fields whose bounds are checked where both protocols pass."""
    return {"anyOf": [{"type": "array", "items": item, "minItems": 1, "maxItems": most}, _NULL]}


def _number(kind: str, least: float, most: float) -> dict[str, Any]:
    return {"anyOf": [{"type": kind, "minimum": least, "maximum": most}, _NULL]}


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class VectorBody(Body):
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


class EmbeddingsBody(VectorBody):
    """OpenAI's embeddings request, and prompt_name, normalize and truncate."""

    input: Input
    user: str | None = Field(None, description="Accepted for OpenAI's clients; not used.")


class Chunking(Body):
    """How a document is cut into late chunks: not at all, or into fixed numbers of tokens."""

    type: Literal["none", "fixed"] = "none"
    tokens: int = ChunkPlan.tokens
    overlap: int = ChunkPlan.overlap

    def plan(self) -> ChunkPlan | None:
        if self.type == "none":
            return None
        return ChunkPlan(tokens=self.tokens, overlap=self.overlap)


class DocumentBody(VectorBody):
    """One document, however long."""

    text: str
    chunking: Chunking = Chunking()


class TokenizeBody(Body):
    text: str
    model: str | None = None


class DiagnosticsBody(Body):
    """What to measure of a text's attention; everything when nothing is named."""

    text: str
    model: str | None = None
    layers: list[int] | None = None
    heads: list[int] | None = None
    instruments: list[str] | None = None


class BenchmarkBody(Body):
    """A benchmark of this machine. Left out fields take the suite's own values."""

    suite: Annotated[str, WithJsonSchema({"type": "string", "enum": list(SUITES)})] = DEFAULT_SUITE
    lengths: Annotated[
        list[int] | None,
        WithJsonSchema(
            _some({"type": "integer", "minimum": 1, "maximum": MAX_LENGTH}, MAX_LENGTHS)
        ),
    ] = None
    attentions: Annotated[
        list[str] | None, WithJsonSchema(_some({"type": "string"}, MAX_ATTENTIONS))
    ] = None
    dtypes: Annotated[
        list[str] | None,
        WithJsonSchema(_some({"type": "string", "enum": list(DTYPES)}, len(DTYPES))),
    ] = None
    repeats: Annotated[int | None, WithJsonSchema(_number("integer", 1, MAX_REPEATS))] = None
    seconds: Annotated[
        float | None, WithJsonSchema(_number("number", MIN_SECONDS, MAX_SECONDS))
    ] = None
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
        )
