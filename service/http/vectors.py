"""Vectors and what they cost, as JSON values."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from engine.types import Accounting, Span, Vector
from service.http.json import dump_list
from service.http.schemas import EncodingFormat
from service.turns import in_turns

_BASE64_BYTES = 3 * 2**16
"""Encoded at a time; of a multiple of three, nothing is padded."""


def encode_vector(vector: Vector, encoding: EncodingFormat) -> Vector | str:
    """Numbers for orjson to write, or base64 of little-endian float32."""
    if encoding == "base64":
        return base64.b64encode(vector.astype("<f4", copy=False).tobytes()).decode()
    return np.ascontiguousarray(vector, dtype=np.float32)


async def dump_floats(values: NDArray[np.float32], encoding: EncodingFormat) -> orjson.Fragment:
    """The same of an array of any size, without holding up the event loop."""
    if encoding == "float":
        return await dump_list(values)
    data = values.astype("<f4", copy=False).tobytes()
    starts = range(0, len(data), _BASE64_BYTES)
    pieces = [
        base64.b64encode(data[start : start + _BASE64_BYTES]) async for start in in_turns(starts)
    ]
    return orjson.Fragment(b'"' + b"".join(pieces) + b'"')


def span(value: Span) -> dict[str, int]:
    return {"start": value.start, "end": value.end}


def accounting(cost: Accounting) -> dict[str, Any]:
    return {
        "tokens": cost.tokens,
        "tokens_embedded": cost.tokens_embedded,
        "dropped": None if cost.dropped is None else span(cost.dropped),
        "queue_s": cost.queue_s,
        "compute_s": cost.compute_s,
    }


def usage(tokens: int) -> dict[str, int]:
    """OpenAI's count. Embedding makes no tokens, so the total is the prompt's."""
    return {"prompt_tokens": tokens, "total_tokens": tokens}


def server_timing(costs: Sequence[Accounting]) -> dict[str, str]:
    """The standard header of where the time went: the longest wait and the longest batch."""
    queue_ms = max(cost.queue_s for cost in costs) * 1000
    compute_ms = max(cost.compute_s for cost in costs) * 1000
    return {"server-timing": f"queue;dur={queue_ms:.1f}, compute;dur={compute_ms:.1f}"}
