"""One text's diagnosis: read the layers one after the other, and collect the readings.

One layer is in memory at a time, and the work pauses after short slices, so that texts can run in
between.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engine.analysis.diagnosis_plan import DiagnosisPlan
from engine.analysis.finite import keep_finite, one_each
from engine.analysis.layer_capture import (
    CapturedLayer,
    ProjectedLayer,
    capture_layers,
    head_view,
    kind_as_read,
    layer_view,
)
from engine.analysis.notes import notes_on
from engine.analysis.token_kinds import token_kinds
from engine.attention_types import Diagnosis, ExtraReading, HeadValues, SkippedInstrument
from engine.diagnostics import LAYER_INSTRUMENTS, AnyInstrument, Instrument
from engine.diagnostics.head_readings import TimedReading, read_heads, timed
from engine.diagnostics.instrument import LayerReader
from engine.diagnostics.lln_diag import DiagWeightBuffer
from engine.diagnostics.readings import Floats, Reading
from engine.execution.inputs import PreparedText
from engine.execution.results import accounting
from engine.model.embedding_model import EmbeddingModel
from engine.scheduling.request import TimedResult
from engine.steps import Steps, in_slices

SLICE_S = 0.02
"""How long a diagnosis runs before other work may; a single operation may take longer."""


@dataclass(frozen=True)
class LayerReadings:
    """What the instruments read from one layer, and how long each took."""

    readings: Mapping[str, TimedReading]
    left_out: tuple[SkippedInstrument, ...] = ()
    """What was read but is no finite number."""


def read_in_slices(
    model: EmbeddingModel,
    text: PreparedText,
    plan: DiagnosisPlan,
    layers: Iterator[Steps[ProjectedLayer]] | None = None,
) -> Steps[list[LayerReadings]]:
    """Read the layers of the plan, in their order, with a pause after each slice of time.

    `layers` are those that the plan's instruments see, if the encoder need not compute them for
    this diagnosis; captured ones if some instrument reads whole layers.
    """
    return in_slices(read_layers(model, text, plan, layers), SLICE_S)


@torch.no_grad()
def read_layers(
    model: EmbeddingModel,
    text: PreparedText,
    plan: DiagnosisPlan,
    layers: Iterator[Steps[ProjectedLayer]] | None = None,
) -> Steps[list[LayerReadings]]:
    """The same with a pause wherever one is possible."""
    found: list[LayerReadings] = []
    readers = {name: LAYER_INSTRUMENTS[name].start() for name in plan.of_layers}
    buffer = DiagWeightBuffer()
    kinds_of_tokens = token_kinds(model.tokenizer, text.ids)
    for steps in layers or capture_layers(model, text):
        layer = yield from steps
        yield
        readings = yield from _read_layer(model, layer, plan, readers, buffer, kinds_of_tokens)
        yield
        if layer.index in plan.layers:
            found.append(readings)
        if layer.index >= max(plan.layers):
            break
    return found


def _read_layer(
    model: EmbeddingModel,
    layer: ProjectedLayer,
    plan: DiagnosisPlan,
    readers: Mapping[str, LayerReader],
    buffer: DiagWeightBuffer,
    kinds_of_tokens: Tensor,
) -> Steps[LayerReadings]:
    found: dict[str, TimedReading] = {}
    is_chosen = layer.index in plan.layers
    if is_chosen and plan.of_heads:
        view = replace(head_view(model, layer), token_kinds=kinds_of_tokens.to(layer.q.device))
        view = view.only(plan.heads)
        found = yield from read_heads(view, plan.of_heads, plan.effort, buffer)
    for name, reader in readers.items():
        if is_chosen or LAYER_INSTRUMENTS[name].needs_all_layers:
            assert isinstance(layer, CapturedLayer), "the caller captures what whole layers need"
            found[name] = yield from timed(reader(layer_view(model, layer)))
    return LayerReadings(*keep_finite(found, layer.index))


def diagnosis_of(
    model: EmbeddingModel,
    text: PreparedText,
    plan: DiagnosisPlan,
    result: TimedResult[list[LayerReadings]],
) -> Diagnosis:
    """Collect the readings of all layers by instrument."""
    layers = result.value
    assert len(layers) == len(plan.layers), "every layer asked for was read"
    num_tokens, effort = text.num_embedded, plan.effort
    known = [one for one in plan.instruments if all(one.name in layer.readings for layer in layers)]
    return Diagnosis(
        model=model.name,
        tokens=num_tokens,
        layers=plan.layers,
        heads=plan.heads,
        attention=tuple(kind_as_read(model, layer, num_tokens) for layer in plan.layers),
        instruments=tuple(_head_values(one, layers) for one in known),
        accounting=accounting(text, result),
        mode=effort.mode,
        sampled_rows=effort.sampled_rows,
        rows_read=effort.num_rows(num_tokens),
        seed=effort.seed,
        quantiles=effort.quantiles,
        notes=notes_on(model, plan.layers, [one.name for one in known], num_tokens),
        left_out=one_each([*plan.skipped, *(one for layer in layers for one in layer.left_out)]),
    )


def _head_values(instrument: AnyInstrument, layers: Sequence[LayerReadings]) -> HeadValues:
    timed = [layer.readings[instrument.name] for layer in layers]
    readings = [one.reading for one in timed]
    is_exact = all(reading.error is None for reading in readings)
    # Layers of different attention may have different quantities beside their values.
    beside = dict.fromkeys(name for reading in readings for name in reading.beside)
    return HeadValues(
        instrument=instrument.name,
        unit=readings[0].unit,
        method="; ".join(dict.fromkeys(reading.method for reading in readings)),
        values=tuple(_row(reading.values) for reading in readings),
        error=None if is_exact else tuple(_errors(reading) for reading in readings),
        compute_s=sum(one.compute_s for one in timed),
        scope="head" if isinstance(instrument, Instrument) else "layer",
        cost="; ".join(dict.fromkeys(reading.cost for reading in readings)),
        beside=tuple(_extra_reading(name, readings) for name in beside),
        labels=None
        if readings[0].labels is None
        else tuple(reading.labels or () for reading in readings),
    )


def _row(values: Floats) -> tuple[float, ...]:
    """A layer's single value is a row of its own."""
    return tuple(values.reshape(-1).tolist())


def _errors(reading: Reading) -> tuple[float, ...]:
    """An exact layer among sampled ones has an error of 0."""
    if reading.error is None:
        return (0.0,) * reading.values.size
    return _row(reading.error)


def _extra_reading(name: str, readings: Sequence[Reading]) -> ExtraReading:
    parts = [reading.beside.get(name) for reading in readings]
    known = [part for part in parts if part is not None]
    is_exact = all(part.error is None for part in known)
    return ExtraReading(
        name=name,
        unit=known[0].unit,
        values=tuple(None if part is None else part.values.tolist() for part in parts),
        error=None
        if is_exact
        else tuple(
            None if part is None or part.error is None else part.error.tolist() for part in parts
        ),
    )
