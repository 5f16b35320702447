"""The bodies of text-embeddings-inference's requests."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, Field, WithJsonSchema

from engine.types import EmbedOptions, RankOptions, Truncate
from service.http.schemas.fields import (
    IDS,
    AtLeastOne,
    Body,
    Input,
    OutputDtypeField,
    Scoring,
    Text,
)


class Truncation(BaseModel):
    """What to do with texts that are too long."""

    truncate: bool | None = Field(
        None, description="Cut a text that is too long instead of refusing it."
    )
    truncation_direction: Literal["right", "left", "Right", "Left"] = "right"

    @property
    def policy(self) -> Truncate:
        if not self.truncate:
            return "error"
        return "start" if self.truncation_direction.lower() == "left" else "end"


ModelName: TypeAlias = Annotated[
    str | None, Field(description="One of GET /v1/models; the first when absent.")
]
PromptName: TypeAlias = Annotated[str | None, Field(description="One of the model's own prompts.")]


class TokenStatesBody(Body, Truncation):
    """text-embeddings-inference's request for the state of every token, and `model`."""

    inputs: Input
    model: ModelName = None
    prompt_name: PromptName = None

    def options(self) -> EmbedOptions:
        return EmbedOptions(prompt_name=self.prompt_name, truncate=self.policy, normalize=False)


class EmbedBody(TokenStatesBody):
    """text-embeddings-inference's request for one vector per text, and `model`."""

    normalize: bool = EmbedOptions.normalize
    dimensions: AtLeastOne | None = Field(
        None, description="Keep only this many leading numbers of a vector, then normalise."
    )

    output_dtype: OutputDtypeField = "float"

    def options(self) -> EmbedOptions:
        return replace(super().options(), normalize=self.normalize, dimensions=self.dimensions)


class RerankBody(Body, Truncation):
    """text-embeddings-inference's request to rank texts, `model` and `scoring`."""

    query: Text
    texts: list[Text]
    raw_scores: bool = Field(False, description="Scores of -1 to 1, instead of 0 to 1.")
    return_text: bool = False
    scoring: Scoring = RankOptions.scoring
    model: ModelName = None

    def options(self) -> RankOptions:
        return RankOptions(scoring=self.scoring, truncate=self.policy)


class SimilarityInputs(Body):
    source_sentence: Text
    sentences: list[Text]


class SimilarityParameters(Body, Truncation):
    prompt_name: PromptName = None


class SimilarityBody(Body):
    """text-embeddings-inference's request to compare a sentence with others, and `model`."""

    inputs: SimilarityInputs
    parameters: SimilarityParameters | None = None
    model: ModelName = None

    def options(self) -> EmbedOptions:
        if self.parameters is None:
            return EmbedOptions()
        return EmbedOptions(
            prompt_name=self.parameters.prompt_name, truncate=self.parameters.policy
        )


class TokensBody(Body):
    """text-embeddings-inference's request for the tokens of texts, and `model`."""

    inputs: Text | list[Text]
    add_special_tokens: bool = True
    prompt_name: PromptName = None
    model: ModelName = None


# `as_inputs` reads it, as it reads texts.
IdLists: TypeAlias = Annotated[
    Any, WithJsonSchema({"anyOf": [IDS, {"type": "array", "items": IDS}]})
]


class DecodeBody(Body):
    """text-embeddings-inference's request for the text of token ids, and `model`."""

    ids: IdLists
    skip_special_tokens: bool = True
    model: ModelName = None
