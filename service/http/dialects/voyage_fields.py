"""What Voyage's two requests for vectors have in common."""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic import Field

from engine.async_engine import AsyncEngine
from engine.types import EmbedOptions
from service.http.dialects.outputs import Dtype, vector_form
from service.http.dialects.prompts import prompt_for
from service.http.json_response import EncodingFormat, VectorForm
from service.http.schemas.fields import AtLeastOne, Body

InputType: TypeAlias = Literal["query", "document"]


class VectorFields(Body):
    """What Voyage's two requests for vectors have in common."""

    model: str | None = None
    input_type: InputType | None = Field(
        None, description="Picks the model's prompt for queries or documents, where it has one."
    )
    output_dimension: AtLeastOne | None = None
    output_dtype: Dtype | None = "float"
    encoding_format: EncodingFormat | None = None

    def options(self, engine: AsyncEngine, truncation: bool | None = False) -> EmbedOptions:
        return EmbedOptions(
            prompt_name=prompt_for(self.input_type, engine.resolve(self.model)),
            dimensions=self.output_dimension,
            truncate="end" if truncation else "error",
        )

    def form(self, engine: AsyncEngine) -> VectorForm:
        return vector_form(
            engine,
            self.model,
            self.options(engine),
            dtype=self.output_dtype or "float",
            encoding=self.encoding_format or "float",
            names={"dimensions": "output_dimension"},
        )
