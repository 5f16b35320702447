"""The body of a request to start a batch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, StringConstraints

from service.http.schemas.fields import Body, Whole, limit_fields


class OutputExpiry(Body):
    anchor: Literal["created_at"]
    seconds: Whole


class BatchBody(Body):
    """OpenAI's request."""

    input_file_id: str
    endpoint: str = Field(description="/v1/embeddings, /v1/documents or /v1/rerank.")
    completion_window: Literal["24h"]
    metadata: (
        Annotated[
            dict[
                Annotated[str, StringConstraints(max_length=64)],
                Annotated[str, StringConstraints(max_length=512)],
            ],
            BeforeValidator(limit_fields),
            Field(max_length=16),
        ]
        | None
    ) = None
    output_expires_after: OutputExpiry | None = Field(
        None, description="Delete the answers so long after they are complete."
    )
