"""Packs vectors in the format that a request asks for."""

from __future__ import annotations

import math
from typing import NamedTuple, Self

import numpy as np

from engine.model.quantized import check_output_dtype, quantize, range_of
from engine.types import EmbedOptions, ModelInfo, OutputDtype, Vector
from service.grpc.requests import embed_options, unknown_number
from service.pb.lln.v1 import embeddings_pb2

_DTYPE: dict[int, OutputDtype] = {
    embeddings_pb2.VECTOR_FORMAT_FLOAT32: "float",
    embeddings_pb2.VECTOR_FORMAT_FLOAT16: "float16",
    embeddings_pb2.VECTOR_FORMAT_INT8: "int8",
    embeddings_pb2.VECTOR_FORMAT_UINT8: "uint8",
    embeddings_pb2.VECTOR_FORMAT_BINARY: "binary",
    embeddings_pb2.VECTOR_FORMAT_UBINARY: "ubinary",
}

_SCALED = (embeddings_pb2.VECTOR_FORMAT_INT8, embeddings_pb2.VECTOR_FORMAT_UINT8)


class VectorPacker(NamedTuple):
    """How the vectors of one answer are packed."""

    format: embeddings_pb2.VectorFormat
    options: EmbedOptions
    model: ModelInfo

    @classmethod
    def of(cls, message: embeddings_pb2.EmbedOptions, model: ModelInfo) -> Self:
        """Raises InvalidInput for an unknown format, and one that such vectors cannot have."""
        form = message.format or embeddings_pb2.VECTOR_FORMAT_FLOAT32
        if form not in embeddings_pb2.VectorFormat.values():
            raise unknown_number("format", message.format, embeddings_pb2.VectorFormat.keys())
        packer = cls(form, embed_options(message), model)
        if not packer._has_row_scales:
            check_output_dtype(_DTYPE[form], packer.options, model)
        return packer

    @property
    def _has_row_scales(self) -> bool:
        return self.format == embeddings_pb2.VECTOR_FORMAT_INT8 and not self.options.normalize

    def message(self, vector: Vector) -> embeddings_pb2.Vector:
        """Packs the numbers in little-endian order on every machine."""
        message = embeddings_pb2.Vector(format=self.format, shape=vector.shape)
        if self._has_row_scales:
            scales = _row_scales(vector)
            message.data = np.rint(vector / scales).astype(np.int8).tobytes()
            message.scales.extend(scales.ravel().tolist())
            return message
        codes = quantize(vector, _DTYPE[self.format], self.model)
        message.data = codes.astype(codes.dtype.newbyteorder("<"), copy=False).tobytes()
        if self.format in _SCALED:
            scale = range_of(self.model, vector.shape[-1]) / 127
            message.scales.extend([scale] * math.prod(vector.shape[:-1]))
        return message


def _row_scales(vector: Vector) -> Vector:
    """Returns the int8 scale of each row: its largest number becomes 127."""
    largest: Vector = np.abs(vector).max(axis=-1, keepdims=True)
    return np.where(largest > 0, largest / np.float32(127), np.float32(1))
