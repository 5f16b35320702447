"""The bodies of text-embeddings-inference's requests."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from pydantic import Field

from engine.types import EmbedOptions, Truncate
from service.http.schemas.fields import AtLeastOne, Body, Input, OutputDtypeField


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

    normalize: bool = EmbedOptions.normalize
    dimensions: AtLeastOne | None = Field(
        None, description="Keep only this many leading numbers of a vector, then normalise."
    )

    output_dtype: OutputDtypeField = "float"

    def options(self) -> EmbedOptions:
        return replace(super().options(), normalize=self.normalize, dimensions=self.dimensions)
