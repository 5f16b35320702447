"""JSON answers: written with orjson, with vectors and costs as JSON values.

Long lists are written a few milliseconds at a time, with the event loop free in between.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import orjson
from numpy.typing import NDArray
from starlette.responses import Response

from engine.model.quantized import quantize
from engine.types import Accounting, ModelInfo, OutputDtype, Span, Vector
from service.fairness import cooperatively

EncodingFormat: TypeAlias = Literal["float", "base64"]

_OPTIONS = orjson.OPT_SERIALIZE_NUMPY

_BASE64_BYTES = 3 * 2**16
"""Encoded at a time; a multiple of three needs no padding."""


def json_response(
    document: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """An answer of a few values. Pass long lists through `dump_list` first."""
    body = orjson.dumps(document, option=_OPTIONS)
    return Response(body, status, headers, media_type="application/json")


async def dump_list(items: Iterable[Any]) -> orjson.Fragment:
    """A JSON list, written a few milliseconds at a time."""
    # Pieces are not collected: however short, each holds the kilobytes that orjson reserves for it.
    written = BytesIO()
    before = b"["
    async for item in cooperatively(items):
        written.write(before)
        written.write(orjson.dumps(item, option=_OPTIONS))
        before = b","
    written.write(b"]" if written.tell() else b"[]")
    return orjson.Fragment(written.getvalue())  # which does not copy it


async def dump_floats(values: NDArray[np.float32], encoding: EncodingFormat) -> orjson.Fragment:
    """An array of any size as JSON, written a few milliseconds at a time."""
    if encoding == "float":
        return await dump_list(values)
    data = values.astype("<f4", copy=False).tobytes()
    starts = range(0, len(data), _BASE64_BYTES)
    pieces = [
        base64.b64encode(data[start : start + _BASE64_BYTES])
        async for start in cooperatively(starts)
    ]
    return orjson.Fragment(b'"' + b"".join(pieces) + b'"')


def encode_vector(vector: NDArray[Any], encoding: EncodingFormat) -> NDArray[Any] | str:
    """Numbers for orjson to write, or base64 of their bytes, in little-endian order."""
    if encoding == "base64":
        little = vector.dtype.newbyteorder("<")
        return base64.b64encode(vector.astype(little, copy=False).tobytes()).decode()
    return np.ascontiguousarray(vector)


class VectorForm(NamedTuple):
    """How the vectors of one answer are written."""

    dtype: OutputDtype
    encoding: EncodingFormat
    model: ModelInfo

    def write(self, vector: Vector) -> NDArray[Any] | str:
        return encode_vector(quantize(vector, self.dtype, self.model), self.encoding)


def span(value: Span) -> dict[str, int]:
    return {"start": value.start, "end": value.end}


def accounting(cost: Accounting) -> dict[str, Any]:
    return {
        "tokens": cost.tokens,
        "tokens_embedded": cost.tokens_embedded,
        "dropped": None if cost.dropped is None else span(cost.dropped),
        "queue_s": cost.queue_s,
        "compute_s": cost.compute_s,
        "tokens_alone": cost.tokens_alone,
        "tokens_saved": cost.tokens_saved,
    }


def usage(tokens: int) -> dict[str, int]:
    """OpenAI's token count. Embedding generates no tokens: the total is the prompt's."""
    return {"prompt_tokens": tokens, "total_tokens": tokens}


def server_timing(costs: Sequence[Accounting]) -> dict[str, str]:
    """The standard `Server-Timing` header: the longest wait and the longest computation."""
    queue_ms = max(cost.queue_s for cost in costs) * 1000
    compute_ms = max(cost.compute_s for cost in costs) * 1000
    return {"server-timing": f"queue;dur={queue_ms:.1f}, compute;dur={compute_ms:.1f}"}
