"""How far a kept segment may be from a fresh reading of it.

What a segment reads of the rest of its document is LLN's merged state, the sinks, and LLN's share,
which grows with the length. A `View` is a sketch of these as they were when a segment was read: two
random projections of each channel's mean value, its mass, and projections of the sinks. Two views
tell how far the rest of the document has moved, without the segment's tokens. It moves a vector by
about the square of that, times a factor that is measured for each model: the bound that 99 % of
kept chunks stayed within. `python -m benchmarks.living.staleness` fits it, and judges it elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.checkpoint.block_size import beyond_a_block
from engine.model.attention import LLNAttention, LLNDiagAttention
from engine.model.embedding_model import EmbeddingModel
from engine.model.segmented_pass import LayerStates, SinkRows
from kernels.attention import LLNState, merge_states

VALUE_DIRECTIONS = 2
SINK_DIRECTIONS = 8
BESIDE = 0.1
"""The share of a document's mean staleness that is added to each kept segment: its neighbours in
the merged state are stale themselves, so its present view is not quite that of a fresh reading."""

LEAST = 0.0015
"""The least staleness stated for a kept segment of a model for which no other was measured: smaller
movements cannot be distinguished. In long documents a new title or opening moves a few chunks by as
much, but hardly moves the sketches."""

UNSEEN = 0.0001
"""The staleness stated for a kept segment whose sketches did not move at all."""

_SEED = 20_260_101

Numbers = NDArray[np.float32]


@dataclass(frozen=True)
class View:
    """What a segment saw of the rest of its document."""

    mass: Numbers  # [L', H, D] each channel's share of its head's mass, for layers with a state
    values: Numbers  # [L', H, D, VALUE_DIRECTIONS]
    sinks: Numbers  # [L", 2 (k, v), H, n, SINK_DIRECTIONS], for layers with sinks
    share: float  # of the document outside a block


class Measured(NamedTuple):
    """What was measured for a model."""

    factors: NDArray[np.float64]  # of each part of a movement
    least: float  # the least staleness that is stated for a kept segment


class Movement(NamedTuple):
    """How far two views are apart, squared: of each, the part that changed."""

    values: float
    mass: float
    sinks: float
    share: float


def view_of(
    states: Sequence[LayerStates],
    first: SinkRows,
    last: SinkRows,
    *,
    num_tokens: int,
    block_size: int,
) -> View:
    """The view that all segments of a document have, from their states in order."""
    merged = [
        reduce(merge_states, [one for one in layer if one is not None])
        for layer in zip(*states, strict=True)
        if layer[0] is not None
    ]
    mass, values = zip(*map(_sketch, merged), strict=True) if merged else ((), ())
    return View(
        _stacked(mass),
        _stacked(values),
        _stacked(list(_sink_sketches(first, last))),
        beyond_a_block(num_tokens, block_size),
    )


def movement(then: View, now: View, model: EmbeddingModel) -> Movement:
    """How far the rest of the document has moved between two views."""
    mixes = _mixes(model)
    values = mass = 0.0
    if len(now.mass) and len(now.mass) == len(then.mass):
        weight = (now.mass + then.mass)[..., None] / 2
        moved = (weight * (now.values - then.values) ** 2).sum((2, 3))
        size = (weight * now.values**2).sum((2, 3))
        values = float((mixes**2 * moved / np.maximum(size, 1e-20)).mean())
        mass = float((mixes**2 * np.abs(now.mass - then.mass).sum(2) ** 2).mean())
    sinks = 0.0
    if len(now.sinks):
        moved_sinks = ((now.sinks - then.sinks) ** 2).sum((2, 3, 4))
        sinks = float((moved_sinks / np.maximum((now.sinks**2).sum((2, 3, 4)), 1e-20)).mean())
    share = float(((now.share - then.share) * mixes).mean() ** 2) if mixes.size else 0.0
    return Movement(values, mass, sinks, share)


def bound(moved: Movement, model: EmbeddingModel) -> float:
    """A bound on 1 - cosine to a fresh vector, for 99 % of kept chunks; 0 to 1."""
    return min(1.0, float(sum(np.array(moved) * measured_for(model.info.calibration).factors)))


def measured_for(calibration: str | None) -> Measured:
    """For a calibration that was not measured, twice the largest factors of all."""
    measured = _measured()
    if calibration in measured:
        return measured[calibration]
    largest = np.array([one.factors for one in measured.values()]).max(0)
    return Measured(2 * largest, LEAST)


def _sink_sketches(first: SinkRows, last: SinkRows) -> Iterator[Tensor]:
    for ends in zip(first.k, last.k, first.v, last.v, strict=True):
        k, v = torch.cat(ends[:2]), torch.cat(ends[2:])  # [n, H, D]
        if len(k):
            yield torch.stack([k, v]).transpose(1, 2) @ _directions(k.shape[-1], SINK_DIRECTIONS)


def _sketch(state: LLNState) -> tuple[Tensor, Tensor]:
    log_mass, value = state.log_mass[0].float(), state.value[0].float()
    return log_mass.softmax(-1), value @ _directions(value.shape[-1], VALUE_DIRECTIONS)


@lru_cache(maxsize=8)
def _directions(size: int, count: int) -> Tensor:
    """Random directions that are the same everywhere: [size, count]."""
    draws = np.random.Generator(np.random.PCG64(_SEED)).integers(0, 2, (size, count))
    return torch.from_numpy((2.0 * draws - 1).astype(np.float32))


def _stacked(parts: Sequence[Tensor]) -> Numbers:
    return _rounded(torch.stack(list(parts))) if parts else np.zeros((0, 1, 1), np.float32)


def _rounded(values: Tensor) -> Numbers:
    """As precise as records keep it, so that a view is the same before and after."""
    kept: Numbers = values.half().float().cpu().numpy()
    return kept


def _mixes(model: EmbeddingModel) -> Numbers:
    """LLN's share in each head of the layers that have LLN, at its largest: [L', H]."""
    rows = [
        layer.parameters.mix.float().cpu().numpy()
        for layer in model.encoder.attention
        if isinstance(layer, LLNDiagAttention | LLNAttention)
    ]
    return np.stack(rows) if rows else np.zeros((0, 1), np.float32)


@lru_cache(maxsize=1)
def _measured() -> dict[str, Measured]:
    stored = json.loads(Path(__file__).with_name("staleness.json").read_text())
    return {
        calibration: Measured(np.array(one["factors"]), one["least"])
        for calibration, one in stored.items()
    }
