"""What answers of many routes have in common."""

from __future__ import annotations

from typing import TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from engine.errors import Quantity

VectorValue: TypeAlias = list[float] | str
"""Numbers, or base64 of little-endian float32."""


class Described(BaseModel):
    """What some route answers, for its description. Routes write their answers themselves, so a
    server has no use for the rest of a model before somebody reads the descriptions."""

    model_config = ConfigDict(defer_build=True)


class Answer(Described):
    model_config = ConfigDict(extra="forbid")


class ErrorDetail(Answer):
    """What went wrong, for people (message) and programs (the rest)."""

    message: str
    type: str
    code: str
    param: str | None
    limit: Quantity | None
    actual: Quantity | None


class ErrorAnswer(Answer):
    error: ErrorDetail
    detail: str | None = Field(
        None, description="The message once more, on paths where other vendors' clients read it."
    )


class SpanValue(Answer):
    """A half-open range."""

    start: int
    end: int


class Usage(Answer):
    prompt_tokens: int
    total_tokens: int


class AccountingValue(Answer):
    """What the text cost, and the characters that truncation dropped. `tokens_saved` are those of
    `tokens_embedded` that no reading of the whole document needed."""

    tokens: int
    tokens_embedded: int
    dropped: SpanValue | None
    queue_s: float
    compute_s: float
    tokens_alone: int
    tokens_saved: int
