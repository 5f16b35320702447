"""Vectors as vendors ask for them: a data type, as numbers or in base64."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from engine.types import Vector
from service.http.json_response import encode_vector

Dtype: TypeAlias = Literal["float", "int8", "uint8", "binary", "ubinary"]
Encoding: TypeAlias = Literal["float", "base64"]


def encode(vector: Vector, dtype: Dtype, encoding: Encoding) -> Any:
    assert dtype == "float"
    return encode_vector(vector, encoding)
