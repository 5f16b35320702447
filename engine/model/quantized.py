"""Vectors in fewer bytes: float16, int8, uint8, and one bit a number.

int8 and uint8 share one range for all dimensions, so the products and cosines of the codes are
those of the vectors, up to a factor (for uint8, after 128 is subtracted), and an index can compare
codes as they are. A range for each dimension, as sentence-transformers calibrates them, would have
to be undone first; benchmarks/suites/quantization.py compares both.

A bit says whether a number is above 0, eight to a byte, the first in the highest bit. "binary" is
"ubinary" less 128, as sentence-transformers, Cohere and Voyage have it.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.errors import InvalidInput
from engine.types import EmbedOptions, ModelInfo, OutputDtype, Vector

RANGE_SIGMAS = 5.0
"""A unit vector's numbers are 1 / sqrt(dim) in size. Those of real text stay within five times
that, in models without dimensions that stand out."""

_WIDER = 1.5
_MARGIN = 1.25


def usual_range(dim: int) -> float:
    return min(1.0, RANGE_SIGMAS / sqrt(dim))


def range_for(vectors: Vector) -> float:
    """The range of a model that gives such unit vectors [..., dim]: the usual one, or a wider one
    if a dimension stands out.

    It grows in steps, so that a rounding error on another device leaves it as it is.
    """
    found = usual_range(vectors.shape[-1])
    needed = min(1.0, _MARGIN * float(np.abs(vectors).max()))
    while found < needed:
        found *= _WIDER
    return min(1.0, found)


def range_of(model: ModelInfo, dimensions: int) -> float:
    """The range of vectors that were cut to this many numbers and normalised again."""
    return min(1.0, model.int8_range * sqrt(model.dim / dimensions))


def check_output_dtype(dtype: OutputDtype, options: EmbedOptions, model: ModelInfo) -> None:
    """Raises InvalidInput if vectors of these options have no such form."""
    if dtype in ("int8", "uint8") and not options.normalize:
        raise InvalidInput(
            f"{dtype} is for normalised vectors, since others have no fixed range; ask for those, "
            "or for float",
            code="dtype_needs_normalized",
            param="normalize",
            actual="false",
        )
    dimensions = options.dimensions or model.dim
    if dtype in ("binary", "ubinary") and dimensions % 8:
        raise InvalidInput(
            f"{dtype} packs eight numbers into a byte, and {dimensions} is not a multiple of 8",
            code="dtype_needs_whole_bytes",
            param="dimensions",
            limit=8,
            actual=dimensions,
        )


def quantize(vectors: Vector, dtype: OutputDtype, model: ModelInfo) -> NDArray[Any]:
    """Vectors [..., dim] in another form; call `check_output_dtype` first. Binary forms have an
    eighth of the numbers."""
    match dtype:
        case "float":
            return vectors
        case "float16":
            return vectors.astype(np.float16)
        case "int8":
            return _codes(vectors, model).astype(np.int8)
        case "uint8":
            return (_codes(vectors, model) + 128).astype(np.uint8)
        case "ubinary":
            return np.packbits(vectors > 0, axis=-1)
        case "binary":
            return (np.packbits(vectors > 0, axis=-1) ^ 128).view(np.int8)


def _codes(vectors: Vector, model: ModelInfo) -> NDArray[np.float32]:
    """Whole numbers of -127 to 127; number = code * range / 127."""
    scale = 127 / range_of(model, vectors.shape[-1])
    codes: NDArray[np.float32] = np.clip(np.rint(vectors * np.float32(scale)), -127, 127)
    return codes
