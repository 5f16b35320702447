"""What the bodies of requests are made of: numbers, texts, and how texts become vectors.

Unknown fields and wrong types are refused: a typo is an error. The engine checks the bounds that
it knows (lengths, counts, dimensions), once for HTTP, gRPC and Python.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence, Set
from typing import Annotated, Any, Literal, TypeAlias, cast

import numpy as np
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError

from engine.types import EmbedOptions, OutputDtype, RankScoring, TextInput
from service.given_values import wrong_type
from service.http.json_response import EncodingFormat

_EXACT = 2**53
"""From here on, a float no longer tells which whole number was meant."""

MAX_FIELDS = 256
"""Fields of one object of a request."""

_DEFAULTS = EmbedOptions()

_TEXT: dict[str, Any] = {"type": "string", "minLength": 1}
IDS: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}}
_TEXTS: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"anyOf": [_TEXT, IDS]}}


_DIGITS = re.compile(r"-?[0-9]+(\.0+)?")


def _only_digits(value: Any) -> Any:
    """A query string's numbers are texts, in which pydantic passes over spaces, `+` and `_`."""
    if isinstance(value, str) and not _DIGITS.fullmatch(value):
        raise PydanticCustomError("int_digits", "input should be a valid integer")
    return value


OnlyDigits = BeforeValidator(_only_digits)


def _accept_whole_float(value: Any) -> Any:
    """JSON has one kind of number, and some languages write 512 as 512.0."""
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) < _EXACT
    return int(value) if is_whole else value


def _integer_schema(least: int = 1 - _EXACT) -> WithJsonSchema:
    """Bounds for the schema alone; the engine checks them."""
    return WithJsonSchema({"type": "integer", "minimum": least, "maximum": _EXACT - 1})


_Integer: TypeAlias = Annotated[int, BeforeValidator(_accept_whole_float), OnlyDigits]
AtLeastOne: TypeAlias = Annotated[_Integer, _integer_schema(1)]
AtLeastZero: TypeAlias = Annotated[_Integer, _integer_schema(0)]
Whole: TypeAlias = Annotated[_Integer, _integer_schema()]
Text: TypeAlias = Annotated[str, WithJsonSchema(_TEXT)]

# `as_inputs` reads it: pydantic would try a union branch by branch, and report a baffling error.
Input: TypeAlias = Annotated[Any, WithJsonSchema({"anyOf": [_TEXT, IDS, _TEXTS]})]


OutputDtypeField: TypeAlias = Annotated[
    OutputDtype,
    Field(
        description="float16; int8 and uint8 of normalised vectors; binary and ubinary: a bit for "
        "each number, packed into int8 and uint8."
    ),
]


Scoring: TypeAlias = Annotated[
    RankScoring,
    Field(
        description="vectors: the cosine of the query's vector with that of the text, or of its "
        "best passage. tokens: late interaction, the mean over the query's tokens of the best "
        "cosine with a token of the passage."
    ),
]


Encoding: TypeAlias = Annotated[
    EncodingFormat,
    BeforeValidator(lambda given: "float" if given is None else given),
    WithJsonSchema({"anyOf": [{"type": "string", "enum": ["float", "base64"]}, {"type": "null"}]}),
]
"""LiteLLM's clients write null where they mean the default."""


def counted_first(check: Callable[[int], None]) -> BeforeValidator:
    """Checks how many values a list has before they are read: there may be a million."""

    def counted(value: Any) -> Any:
        if isinstance(value, list):
            check(len(value))
        return value

    return BeforeValidator(counted)


def limit_fields(value: Any) -> Any:
    if isinstance(value, dict) and len(value) > MAX_FIELDS:
        raise PydanticCustomError(
            "too_many_fields",
            "an object of a request has at most {max_length} fields",
            {"max_length": MAX_FIELDS},
        )
    return value


def _stop_at_first_problem(schema: Any) -> None:
    """In all lists of a schema: what `FailFast` does in the annotation of one."""
    if isinstance(schema, dict):
        if schema.get("type") == "list":
            schema["fail_fast"] = True
        parts: Iterable[Any] = schema.values()
    else:
        parts = schema if isinstance(schema, list | tuple) else ()
    for part in parts:
        _stop_at_first_problem(part)


class Body(BaseModel):
    """A body, or a part of one.

    A caller can send millions of wrong values, and pydantic describes each at a cost of about a
    kilobyte: a list is read no further than to the first, and the fields of an object are few.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    _limit_fields = model_validator(mode="before")(limit_fields)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        _stop_at_first_problem(schema)
        return schema


class NoFields(Body):
    """The body of a request that has none of its own. What it holds would be ignored unseen."""


class VectorFields(BaseModel):
    """How texts become vectors."""

    model: str | None = Field(None, description="One of GET /v1/models; the first when absent.")
    encoding_format: Encoding = Field(
        "float",
        description="Numbers, or base64 of their bytes: little-endian float32, or as output_dtype.",
    )
    output_dtype: OutputDtypeField = "float"
    dimensions: AtLeastOne | None = Field(
        None, description="Keep only this many leading numbers of a vector, then normalise."
    )
    prompt_name: str | None = Field(None, description="One of the model's own prompts.")
    normalize: bool = _DEFAULTS.normalize
    truncate: Literal["error", "start", "end"] = Field(
        _DEFAULTS.truncate,
        description="What to do with a text that is too long: refuse it, or drop one end of it.",
    )
    priority: Literal["normal", "background"] = Field(
        _DEFAULTS.priority, description="Background texts yield to those that arrive soon after."
    )

    def options(self) -> EmbedOptions:
        return EmbedOptions(
            prompt_name=self.prompt_name,
            dimensions=self.dimensions,
            normalize=self.normalize,
            truncate=self.truncate,
            priority=self.priority,
        )


class VectorBody(Body, VectorFields):
    """The same fields in a JSON body."""


_INPUT_TYPES = frozenset({str, list, np.ndarray})


def as_inputs(value: Any, param: str, *, texts: bool = True) -> Sequence[TextInput]:
    """The texts of a request, each a string or token ids; a single one becomes a list of one.
    Errors speak of token ids alone where `texts` are not asked for.

    The engine checks what they hold.
    """
    if isinstance(value, str):
        return [value]
    if isinstance(value, np.ndarray):  # token ids of a large body
        return [cast(Sequence[int], value)]
    if not isinstance(value, list):
        either = "a string, token ids, or a list of either"
        raise wrong_type(value, param, either if texts else "token ids, or a list of such lists")
    if value and type(value[0]) is int:
        wrong = _first_of_another_type(value, frozenset({int}))
        if wrong is None:
            return [value]
        raise wrong_type(value[wrong], f"{param}[{wrong}]", f"a token id, as {param}[0] is")
    if (wrong := _first_of_another_type(value, _INPUT_TYPES)) is not None:
        one = "a string or a list of token ids" if texts else "a list of token ids"
        raise wrong_type(value[wrong], f"{param}[{wrong}]", one)
    return cast(Sequence[TextInput], value)


def _first_of_another_type(values: list[Any], types: Set[type]) -> int | None:
    """Where it is. There may be millions: a loop over them would hold up the event loop."""
    kinds = list(map(type, values))
    return min(map(kinds.index, set(kinds) - types), default=None)
