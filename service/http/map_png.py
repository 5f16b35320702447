"""Draws an attention map as a PNG, with zlib alone.

A pixel's colour shows the logarithm of its mean attention. The scale runs from a tenth of uniform
attention to the largest cell.
"""

from __future__ import annotations

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

from engine.attention_types import AttentionMap

_STOPS = ((0.0, 0xFBFAF7), (0.25, 0xD9E2E4), (0.5, 0x8DB3BE), (0.75, 0x2F7384), (1.0, 0x06283D))
"""Positions and colours, from paper to ink: darker means more attention."""


def map_picture(found: AttentionMap, *, height: int, width: int) -> bytes:
    """The map scaled to `height` by `width` pixels."""
    uniform = 1 / found.tokens
    largest = max(float(found.mean.max()), 2 * uniform)
    lowest = np.log(uniform / 10)
    shades = (np.log(np.maximum(found.mean, uniform / 10)) - lowest) / (np.log(largest) - lowest)
    rows = np.arange(height) * len(shades) // height
    columns = np.arange(width) * shades.shape[1] // width
    return png(np.rint(255 * shades[np.ix_(rows, columns)]).astype(np.uint8))


def png(shades: NDArray[np.uint8]) -> bytes:
    """[height, width] shades as an image with a palette."""
    height, width = shades.shape
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    unfiltered = np.pad(shades, ((0, 0), (1, 0)))  # each row begins with its filter type: 0, none
    return b"".join(
        [
            b"\x89PNG\r\n\x1a\n",
            _chunk(b"IHDR", header),
            _chunk(b"PLTE", _palette()),
            _chunk(b"IDAT", zlib.compress(unfiltered.tobytes(), 6)),
            _chunk(b"IEND", b""),
        ]
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    checksum = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)


def _palette() -> bytes:
    positions = np.linspace(0, 1, 256)
    stops = [position for position, _ in _STOPS]
    channels = [
        np.interp(positions, stops, [colour >> shift & 255 for _, colour in _STOPS])
        for shift in (16, 8, 0)
    ]
    return np.rint(np.stack(channels, axis=1)).astype(np.uint8).tobytes()
