"""The bodies of vLLM's requests and answers."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, WithJsonSchema

from engine.errors import InvalidInput
from engine.types import EmbedOptions, Truncate
from service.http.dialects.binary import EmbedDtype, Endianness
from service.http.dialects.call import DialectCall
from service.http.dialects.refusals import TEXT_ONLY, contradiction, refuse, refuse_given
from service.http.schemas.fields import IDS, Body, Input, Text, Whole
from service.http.schemas.responses.base import Described

EncodingFormat: TypeAlias = Literal["float", "base64", "bytes", "bytes_only"]


class PoolingFields(Body):
    """What vLLM's requests to pooling models have in common."""

    model: str | None = None
    user: str | None = Field(None, description="Accepted; not used.")
    request_id: str | None = Field(None, description="Accepted; X-Request-Id names a request here.")
    priority: Whole | None = Field(None, description="Accepted; not used.")
    cache_salt: str | None = Field(None, description="Accepted; nothing is cached.")
    truncate_prompt_tokens: Whole | None = Field(
        None, description="Cut texts to this many tokens; -1 cuts at the model's limit."
    )
    truncation_side: Literal["left", "right"] | None = None
    use_activation: bool | None = Field(None, description="Whether vectors are normalised.")
    padding: Literal["max_length", "do_not_pad"] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None

    def options(self, call: DialectCall, dimensions: int | None = None) -> EmbedOptions:
        if self.padding == "max_length":
            raise refuse("padding", "max_length", "texts are never padded here")
        refuse_given(self, {"mm_processor_kwargs": TEXT_ONLY})
        call.resolve(self.model)
        limit = self.truncate_prompt_tokens
        policy: Truncate = "start" if self.truncation_side == "left" else "end"
        return EmbedOptions(
            dimensions=dimensions,
            normalize=self.use_activation is not False,
            truncate="error" if limit is None else policy,
            max_tokens=None if limit == -1 else limit,
        )


class EmbedBody(PoolingFields):
    """vLLM's request for embeddings."""

    input: Input
    encoding_format: EncodingFormat | None = "float"
    dimensions: Whole | None = None
    embed_dtype: EmbedDtype | None = Field(
        "float32", description="The numbers in base64 and bytes."
    )
    endianness: Endianness | None = "native"
    add_special_tokens: bool | None = True

    def check(self) -> None:
        if self.add_special_tokens is False:
            raise refuse(
                "add_special_tokens", "false", "the models were trained with their special tokens"
            )

    @property
    def binary(self) -> tuple[EmbedDtype, Endianness]:
        return self.embed_dtype or "float32", self.endianness or "native"


class PoolingBody(EmbedBody):
    """vLLM's request for the states of tokens, or for vectors."""

    task: str | None = Field("token_embed", description="token_embed, or embed.")


class ScoreBody(PoolingFields):
    """vLLM's request to compare texts. The pairs of texts have four names."""

    text_1: Text | list[Text] | None = None
    text_2: Text | list[Text] | None = None
    data_1: Text | list[Text] | None = None
    data_2: Text | list[Text] | None = None
    queries: Text | list[Text] | None = None
    documents: Text | list[Text] | None = None
    items: Text | list[Text] | None = None

    def sides(self) -> tuple[str, list[str], str, list[str]]:
        """Names and texts of the first and second side; a single text is compared with all."""
        for one, other in _SIDES:
            first, second = getattr(self, one), getattr(self, other)
            if first is None or second is None:
                continue
            self._refuse_others(one, other)
            firsts = [first] if isinstance(first, str) else first
            seconds = [second] if isinstance(second, str) else second
            if len(firsts) not in (1, len(seconds)):
                raise InvalidInput(
                    f"{one} has {len(firsts)} texts and {other} {len(seconds)}; send one, or as "
                    "many of both",
                    param=one,
                    limit=len(seconds),
                    actual=len(firsts),
                )
            return one, firsts, other, seconds
        raise InvalidInput("text_1 and text_2 are required", code="missing_field", param="text_1")

    def _refuse_others(self, one: str, other: str) -> None:
        for name in sorted({name for side in _SIDES for name in side} - {one, other}):
            if (value := getattr(self, name)) is not None:
                raise contradiction(
                    f"{name} is given beside {one} and {other}; send one pair", name, value
                )


_SIDES = (
    ("text_1", "text_2"),
    ("data_1", "data_2"),
    ("queries", "documents"),
    ("queries", "items"),
)


class TokenizeBody(Body):
    """vLLM's request for the tokens of a prompt."""

    prompt: Text
    model: str | None = None
    add_special_tokens: bool | None = True
    return_token_strs: bool | None = False


class DetokenizeBody(Body):
    """vLLM's request for the text of tokens."""

    tokens: Annotated[Any, WithJsonSchema(IDS)] = Field(description="The engine checks them.")
    model: str | None = None


class Usage(Described):
    prompt_tokens: int
    total_tokens: int


class Pooled(Described):
    index: int
    object: str
    data: list[list[float]] | list[float] | str


class PoolingAnswer(Described):
    id: str
    object: str
    created: int
    model: str
    data: list[Pooled]
    usage: Usage


class Score(Described):
    index: int
    object: str
    score: float


class ScoreAnswer(Described):
    id: str
    object: str
    created: int
    model: str
    data: list[Score]
    usage: Usage


class Prompt(Described):
    prompt: str


class Version(Described):
    version: str
