"""vLLM's binary answers: vectors one after the other, and where each lies in a header."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import orjson
from fastapi import Response
from numpy.typing import NDArray

from engine.errors import InvalidInput
from engine.types import Vector

EmbedDtype: TypeAlias = Literal["float32", "float16", "bfloat16"]
Endianness: TypeAlias = Literal["native", "big", "little"]

BINARY = ("bytes", "bytes_only")
"""Values of encoding_format that answer with bytes."""

MOST_WITH_PLACES = 500
"""Texts of one answer whose places fit in a header: clients read at most 64 KiB of one."""


def check_places_fit(num_texts: int) -> None:
    if num_texts > MOST_WITH_PLACES:
        raise InvalidInput(
            f"encoding_format bytes says in a header where each of at most {MOST_WITH_PLACES} "
            f"vectors lies, got {num_texts} texts; send fewer, or ask for bytes_only or base64",
            code="too_many_inputs",
            param="encoding_format",
            limit=MOST_WITH_PLACES,
            actual=num_texts,
        )


def as_bytes(vector: Vector, dtype: EmbedDtype, endianness: Endianness) -> NDArray[Any]:
    """The numbers in this form and order, as an array of bytes."""
    values = _rounded_to_bfloat16(vector) if dtype == "bfloat16" else vector.astype(dtype)
    order: Literal["big", "little"] = sys.byteorder if endianness == "native" else endianness
    ordered = values.astype(values.dtype.newbyteorder(order), copy=False)
    return np.frombuffer(ordered.tobytes(), np.uint8)


def _rounded_to_bfloat16(vector: Vector) -> NDArray[np.uint16]:
    """The upper halves of float32, rounded to the nearest, and to even in between."""
    bits = np.ascontiguousarray(vector, np.float32).view(np.uint32)
    rounding = np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1))
    return ((bits + rounding) >> 16).astype(np.uint16)


def bytes_response(
    vectors: Sequence[Vector],
    dtype: EmbedDtype,
    endianness: Endianness,
    head: Mapping[str, Any],
    headers: Mapping[str, str],
    *,
    with_head: bool,
) -> Response:
    pieces = [as_bytes(vector, dtype, endianness).tobytes() for vector in vectors]
    places = []
    start = 0
    for index, (vector, piece) in enumerate(zip(vectors, pieces, strict=True)):
        places.append(
            {
                "index": index,
                "embed_dtype": dtype,
                "endianness": endianness,
                "start": start,
                "end": start + len(piece),
                "shape": list(vector.shape),
            }
        )
        start += len(piece)
    metadata = {"metadata": orjson.dumps({**head, "data": places}).decode()} if with_head else {}
    return Response(
        b"".join(pieces), headers={**headers, **metadata}, media_type="application/octet-stream"
    )
