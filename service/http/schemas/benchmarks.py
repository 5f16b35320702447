"""The body of a request for a benchmark."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import WithJsonSchema

from engine.platform.device import DTYPES
from engine.types import ModelInfo
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
from service.benchmarks.suites import KNOWN_ATTENTIONS, SUITES, BenchmarkPlan
from service.http.schemas.fields import Body, Whole

_NULL = {"type": "null"}


def _some(item: dict[str, Any], most: int) -> dict[str, Any]:
    """A list, or null. For the schema alone: `checked_plan` checks the bounds, also for gRPC."""
    return {"anyOf": [{"type": "array", "items": item, "minItems": 1, "maxItems": most}, _NULL]}


def _number(kind: str, least: float, most: float) -> dict[str, Any]:
    return {"anyOf": [{"type": kind, "minimum": least, "maximum": most}, _NULL]}


class BenchmarkBody(Body):
    """A benchmark of this machine. Omitted fields take the suite's own values."""

    suite: Annotated[str, WithJsonSchema({"type": "string", "enum": list(SUITES)})] = DEFAULT_SUITE
    lengths: Annotated[
        list[Whole] | None,
        WithJsonSchema(
            _some({"type": "integer", "minimum": 1, "maximum": MAX_LENGTH}, MAX_LENGTHS)
        ),
    ] = None
    attentions: Annotated[
        list[str] | None,
        WithJsonSchema(_some({"type": "string", "enum": list(KNOWN_ATTENTIONS)}, MAX_ATTENTIONS)),
    ] = None
    dtypes: Annotated[
        list[str] | None,
        WithJsonSchema(_some({"type": "string", "enum": list(DTYPES)}, len(DTYPES))),
    ] = None
    repeats: Annotated[Whole | None, WithJsonSchema(_number("integer", 1, MAX_REPEATS))] = None
    seconds: Annotated[
        float | None, WithJsonSchema(_number("number", MIN_SECONDS, MAX_SECONDS))
    ] = None
    training: bool | None = None
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
            training=self.training,
        )
