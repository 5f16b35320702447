"""One text's diagnosis: the encoder walked layer by layer, its attention measured on the way.

Only one layer is held at a time, and the work is done in short slices, between which texts run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

import torch

from engine.answers import accounting
from engine.block_size import block_of
from engine.diagnosis_plan import DiagnosisPlan
from engine.diagnostics import LAYER_INSTRUMENTS, AnyInstrument, Instrument, Reading
from engine.diagnostics.base import Effort, Floats
from engine.diagnostics.heads import KEPT_BYTES
from engine.diagnostics.kept import LayerRoom
from engine.diagnostics.layers import LayerReader
from engine.diagnostics.measuring import TimedReading, read_heads, timed
from engine.layer_states import LayerStep, head_view, layer_steps, layer_view
from engine.model.attention import CALIBRATED
from engine.model.embedding_model import EmbeddingModel
from engine.orders import Delivered
from engine.prepare import Prepared
from engine.types import Beside, Diagnosis, HeadValues

SLICE_S = 0.02
"""How long the device is held before others have a turn; one operation may make it longer."""


@dataclass(frozen=True)
class LayerReadings:
    """What the instruments read from one layer, and how long each took."""

    readings: Mapping[str, TimedReading]


def readings_in_slices(
    model: EmbeddingModel,
    text: Prepared,
    plan: DiagnosisPlan,
    layers: Iterator[LayerStep | None] | None = None,
) -> Iterator[tuple[LayerReadings, ...]]:
    """The chosen layers' readings in the order of the layers: those that a slice of time ended.

    `layers` is the walk through the text, where there is a shorter one than a new one.
    """
    steps = readings_by_layer(model, text, plan, layers)
    while True:
        done: list[LayerReadings] = []
        slice_ends = perf_counter() + SLICE_S
        for step in steps:
            if step is not None:
                done.append(step)
            if perf_counter() >= slice_ends:
                break
        else:
            yield tuple(done)
            return
        yield tuple(done)


def kept_between_instruments(model: EmbeddingModel, num_tokens: int, effort: Effort) -> int:
    """Bytes, at most: what each layer's heads leave from one instrument to the next."""
    calibration, head_dim = model.calibration, model.info.dim // model.info.num_heads
    if calibration is None or not any(kind in CALIBRATED for kind in model.info.attention):
        return 0
    block = block_of(num_tokens, calibration.block_size, calibration.long_block)
    width = min(block, num_tokens)
    of_blocks = -(-num_tokens // width) * width * (width + sum(calibration.num_sinks))
    of_factors = 2 * num_tokens * head_dim
    a_number = effort.dtype_of(num_tokens).itemsize
    return min(KEPT_BYTES, model.info.num_heads * (of_blocks + of_factors) * a_number)


@torch.no_grad()
def readings_by_layer(
    model: EmbeddingModel,
    text: Prepared,
    plan: DiagnosisPlan,
    layers: Iterator[LayerStep | None] | None = None,
) -> Iterator[LayerReadings | None]:
    """The same, with None wherever others may have a turn."""
    readers = {name: LAYER_INSTRUMENTS[name].start() for name in plan.of_layers}
    room = LayerRoom(KEPT_BYTES)
    for step in layers or layer_steps(model, text):
        if step is None:
            yield None
            continue
        yield from _read_layer(model, step, plan, readers, room)
        if step.index >= max(plan.layers):
            return


def diagnosis_of(
    model: EmbeddingModel,
    text: Prepared,
    plan: DiagnosisPlan,
    slices: Sequence[Delivered[tuple[LayerReadings, ...]]],
) -> Diagnosis:
    total = Delivered(None, slices[0].queue_s, sum(one.compute_s for one in slices))
    layers = [layer for one in slices for layer in one.value]
    assert len(layers) == len(plan.layers), "every layer asked for was read"
    return Diagnosis(
        model=model.name,
        tokens=text.num_embedded,
        layers=plan.layers,
        heads=plan.heads,
        attention=tuple(model.info.attention[layer] for layer in plan.layers),
        instruments=tuple(_head_values(one, layers) for one in plan.instruments),
        accounting=accounting(text, total),
        mode=plan.effort.mode,
        left_out=plan.left_out,
    )


def _read_layer(
    model: EmbeddingModel,
    step: LayerStep,
    plan: DiagnosisPlan,
    readers: Mapping[str, LayerReader],
    room: LayerRoom,
) -> Iterator[LayerReadings | None]:
    found: dict[str, TimedReading] = {}
    is_chosen = step.index in plan.layers
    if is_chosen and plan.of_heads:
        view = head_view(model, step).only(plan.heads)
        found = yield from read_heads(view, plan.of_heads, plan.effort, room)
    for name, reader in readers.items():
        if is_chosen or LAYER_INSTRUMENTS[name].needs_all_layers:
            found[name] = yield from timed(reader(layer_view(model, step)))
    if is_chosen:
        yield LayerReadings(found)


def _head_values(instrument: AnyInstrument, layers: Sequence[LayerReadings]) -> HeadValues:
    timed = [layer.readings[instrument.name] for layer in layers]
    readings = [one.reading for one in timed]
    exact = all(reading.error is None for reading in readings)
    return HeadValues(
        instrument=instrument.name,
        unit=readings[0].unit,
        method="; ".join(dict.fromkeys(reading.method for reading in readings)),
        values=tuple(_row(reading.values) for reading in readings),
        error=None if exact else tuple(_errors(reading) for reading in readings),
        compute_s=sum(one.compute_s for one in timed),
        scope="head" if isinstance(instrument, Instrument) else "layer",
        cost="; ".join(dict.fromkeys(reading.cost for reading in readings)),
        beside=_beside(readings),
    )


def _beside(readings: Sequence[Reading]) -> tuple[Beside, ...]:
    """Layers of different attention may have different quantities beside their values."""
    names = dict.fromkeys(name for reading in readings for name in reading.beside)
    return tuple(_beside_values(name, readings) for name in names)


def _beside_values(name: str, readings: Sequence[Reading]) -> Beside:
    parts = [reading.beside.get(name) for reading in readings]
    known = [part for part in parts if part is not None]
    is_exact = all(part.error is None for part in known)
    return Beside(
        name=name,
        unit=known[0].unit,
        values=tuple(None if part is None else part.values.tolist() for part in parts),
        error=None
        if is_exact
        else tuple(
            None if part is None or part.error is None else part.error.tolist() for part in parts
        ),
    )


def _row(values: Floats) -> tuple[float, ...]:
    """A layer's one value is a row of its own."""
    return tuple(values.reshape(-1).tolist())


def _errors(reading: Reading) -> tuple[float, ...]:
    """An exact layer beside sampled ones has no error."""
    if reading.error is None:
        return (0.0,) * reading.values.size
    return _row(reading.error)
