"""Vectors in the data types that vendors ask for."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, TypeAlias

from engine.async_engine import AsyncEngine
from engine.model.quantized import check_output_dtype
from engine.types import EmbedOptions
from service.errors import report_names
from service.http.json_response import EncodingFormat, VectorForm

Dtype: TypeAlias = Literal["float", "int8", "uint8", "binary", "ubinary"]


def vector_form(
    engine: AsyncEngine,
    model: str | None,
    options: EmbedOptions,
    *,
    dtype: Dtype = "float",
    encoding: EncodingFormat = "float",
    names: Mapping[str, str] = MappingProxyType({}),
) -> VectorForm:
    """Raises InvalidInput if vectors of these options have no such form. `names` are the vendor's
    for them."""
    info = engine.resolve(model)
    with report_names(names):
        check_output_dtype(dtype, options, info)
    return VectorForm(dtype, encoding, info)
