"""The document's vector, pooled from those of its segments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.living.record import DocumentRecord, KeptSegment
from engine.model.embedding_model import EmbeddingModel
from engine.types import Vector

Numbers = NDArray[np.float64]


class Sums(NamedTuple):
    """Sums over the tokens of segments that follow one another."""

    rows: float
    flat: Numbers  # [W] of the tokens' vectors
    placed: Numbers  # [W] of each token's vector times its place


def sums_of(segments: Sequence[KeptSegment]) -> Sums:
    flat = np.stack([one.vectors.flat for one in segments]).astype(np.float64)
    rising = np.stack([one.vectors.rising for one in segments]).astype(np.float64)
    counts = np.array([one.num_rows for one in segments], dtype=np.float64)[:, None]
    starts = np.cumsum(counts, 0) - counts
    sums = counts * flat
    return Sums(float(counts.sum()), sums.sum(0), (starts * sums + counts**2 / 2 * rising).sum(0))


def pooled_whole(record: DocumentRecord, model: EmbeddingModel) -> Vector:
    """The document's vector [W], before it is finished."""
    match model.checkpoint.pooling:
        case "cls":
            return record.segments[0].vectors.flat
        case "max":
            largest: Vector = np.stack([one.vectors.flat for one in record.segments]).max(0)
            return largest
        case _:
            slope = model.pooling_slope_of(record.num_tokens)
            mean: Vector = _mean(sums_of(record.segments), slope).astype(np.float32)
            return mean


def _mean(sums: Sums, slope: float) -> Numbers:
    """The mean over all tokens, whose weights rise by a slope: see `PooledSpan`."""
    mean: Numbers = ((1 - slope) * sums.flat + 2 * slope * sums.placed / sums.rows) / sums.rows
    return mean
