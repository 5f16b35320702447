"""One text's diagnosis: plan it, read the layers one after the other, and collect the readings.

Functions stand in the order in which a diagnosis runs them. One layer is in memory at a time, and
the work pauses after short slices, so that texts can run in between.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engine.analysis.finite import keep_finite, one_each
from engine.analysis.layer_capture import (
    CapturedLayer,
    capture_layers,
    head_view,
    kind_as_read,
    layer_view,
)
from engine.analysis.notes import notes_on
from engine.analysis.token_kinds import token_kinds
from engine.attention_types import (
    SAMPLED_ROWS,
    Diagnosis,
    ExtraReading,
    HeadValues,
    SkippedInstrument,
)
from engine.checkpoint.block_size import block_of
from engine.config import EngineConfig
from engine.diagnostics import (
    LAYER_INSTRUMENTS,
    AnyInstrument,
    Instrument,
    LayerInstrument,
    find_instruments,
)
from engine.diagnostics.effective_rank import EFFECTIVE_RANK
from engine.diagnostics.head_readings import (
    MAX_PARALLEL_GROUPS,
    TimedReading,
    kept_matrix_bytes,
    read_heads,
    timed,
)
from engine.diagnostics.instrument import LayerReader
from engine.diagnostics.lln_diag import MAX_BUFFER_BYTES, DiagWeightBuffer
from engine.diagnostics.readings import Effort, Floats, Reading
from engine.diagnostics.spectral_gap import SPECTRAL_GAP
from engine.errors import InvalidInput, find_named
from engine.execution.inputs import PreparedText
from engine.execution.results import accounting
from engine.model.attention import CALIBRATED
from engine.model.embedding_model import EmbeddingModel
from engine.scheduling.request import TimedResult
from engine.steps import Steps, in_slices

_EIGENVALUE_COPIES = 3
"""Matrices in memory while LAPACK computes the eigenvalues of one: it, its copy, and rows read."""

EFFORTS: Mapping[str, Effort] = {
    "auto": Effort(mode="auto"),
    "exact": Effort(mode="exact", tolerance=1e-8),
    "sampled": Effort(mode="sampled"),
}
"""By mode."""

FEWEST_ROWS, MOST_ROWS = 2, 65_536
"""Of a sample."""

MAX_SEED = 2**53 - 1
"""Every number up to it is exact in JSON."""

MAX_QUANTILES = 16

SLICE_S = 0.02
"""How long a diagnosis runs before other work may; a single operation may take longer."""


@dataclass(frozen=True, kw_only=True)
class DiagnosisPlan:
    """What a diagnosis will read."""

    layers: tuple[int, ...]
    heads: tuple[int, ...]
    instruments: tuple[AnyInstrument, ...]
    effort: Effort
    are_named: bool = False
    """Whether the request named the instruments."""

    skipped: tuple[SkippedInstrument, ...] = ()
    """Instruments that are too expensive at this length."""

    @property
    def of_heads(self) -> tuple[Instrument, ...]:
        return tuple(one for one in self.instruments if isinstance(one, Instrument))

    @property
    def of_layers(self) -> tuple[str, ...]:
        return tuple(one.name for one in self.instruments if isinstance(one, LayerInstrument))


@dataclass(frozen=True)
class LayerReadings:
    """What the instruments read from one layer, and how long each took."""

    readings: Mapping[str, TimedReading]
    left_out: tuple[SkippedInstrument, ...] = ()
    """What was read but is no finite number."""


def plan_diagnosis(
    model: EmbeddingModel,
    layers: Sequence[int] | None,
    heads: Sequence[int] | None,
    instruments: Sequence[str] | None,
    mode: str = "auto",
    *,
    sampled_rows: int = SAMPLED_ROWS,
    seed: int = 0,
    quantiles: Sequence[float] = (),
) -> DiagnosisPlan:
    """Check the request against the model; None stands for all."""
    if instruments is not None and not instruments:
        raise InvalidInput("instruments is empty", code="invalid_instruments", param="instruments")
    effort = find_named("mode", mode, EFFORTS, param="mode", code="invalid_mode")
    _check_range("sampled_rows", sampled_rows, FEWEST_ROWS, MOST_ROWS)
    _check_range("seed", seed, 0, MAX_SEED)
    effort = replace(
        effort, sampled_rows=sampled_rows, seed=seed, quantiles=_checked_quantiles(quantiles)
    )
    return DiagnosisPlan(
        layers=_readable_layers(layers, model),
        heads=_check_indices("heads", heads, model.info.num_heads),
        instruments=tuple(find_instruments(instruments)),
        effort=effort,
        are_named=instruments is not None,
    )


def _check_range(param: str, value: int, lowest: int, highest: int) -> None:
    if not lowest <= value <= highest:
        raise InvalidInput(
            f"{param} must be from {lowest} to {highest}, got {value}",
            code=f"invalid_{param}",
            param=param,
            limit=lowest if value < lowest else highest,
            actual=value,
        )


def _checked_quantiles(asked: Sequence[float]) -> tuple[float, ...]:
    """In ascending order, each once."""
    if len(asked) > MAX_QUANTILES:
        raise InvalidInput(
            f"quantiles must be at most {MAX_QUANTILES} numbers, got {len(asked)}",
            code="invalid_quantiles",
            param="quantiles",
            limit=MAX_QUANTILES,
            actual=len(asked),
        )
    for share in asked:
        if not 0 <= share <= 1:  # NaN is refused too
            raise InvalidInput(
                f"quantiles must be from 0 to 1, got {share}",
                code="invalid_quantiles",
                param="quantiles",
                limit=0 if share < 0 else 1,
                actual=str(share),
            )
    return tuple(sorted({float(share) for share in asked}))


def _readable_layers(asked: Sequence[int] | None, model: EmbeddingModel) -> tuple[int, ...]:
    """The layers asked for. Instruments cannot read layers with a sliding window."""
    windowed = {
        layer for layer, kind in enumerate(model.info.attention) if kind == "sliding_window"
    }
    if asked is None:
        readable = tuple(layer for layer in range(model.info.num_layers) if layer not in windowed)
        if not readable:
            raise InvalidInput(
                f"all {model.info.num_layers} layers of {model.name} attend within a sliding "
                "window, which no instrument reads",
                code="invalid_layers",
                param="layers",
                actual=model.name,
            )
        return readable
    layers = _check_indices("layers", asked, model.info.num_layers)
    for layer in layers:
        if layer in windowed:
            raise InvalidInput(
                f"layer {layer} of {model.name} attends within a sliding window, "
                "which no instrument reads",
                code="invalid_layers",
                param="layers",
                actual=layer,
            )
    return layers


def _check_indices(param: str, asked: Sequence[int] | None, count: int) -> tuple[int, ...]:
    """In ascending order, each once; all of them for None."""
    if asked is None:
        return tuple(range(count))
    if not asked:
        raise InvalidInput(f"{param} is empty", code=f"invalid_{param}", param=param)
    for index in asked:
        if not 0 <= index < count:
            raise InvalidInput(
                f"{param} contains {index}; the model has 0 to {count - 1}",
                code=f"invalid_{param}",
                param=param,
                limit=count - 1,
                actual=index,
            )
    return tuple(sorted(set(asked)))


def fit_plan(
    plan: DiagnosisPlan,
    model: EmbeddingModel,
    num_tokens: int,
    config: EngineConfig,
) -> DiagnosisPlan:
    """The plan for a text of this length. Instruments that are too expensive for it are left out
    unless the request named them; exact readings beyond the limit are an error."""
    kinds = [model.info.attention[layer] for layer in plan.layers]
    if not plan.are_named:
        plan = _without_expensive(plan, kinds, num_tokens)
    if plan.of_heads:
        _check_pairs(plan, kinds, num_tokens, config.max_exact_pairs)
    return plan


def _without_expensive(plan: DiagnosisPlan, kinds: Sequence[str], num_tokens: int) -> DiagnosisPlan:
    affordable, skipped = [], []
    for one in plan.instruments:
        if isinstance(one, LayerInstrument):
            limit = one.max_tokens
        else:
            limit = one.max_softmax_tokens if "softmax" in kinds else None
        if limit is None or num_tokens <= limit:
            affordable.append(one)
            continue
        reason = f"beyond {limit} tokens it is read only when named"
        skipped.append(SkippedInstrument(instrument=one.name, reason=reason))
    return replace(plan, instruments=tuple(affordable), skipped=tuple(skipped))


def _check_pairs(plan: DiagnosisPlan, kinds: Sequence[str], num_tokens: int, limit: int) -> None:
    """A row costs a pair with every token, for every head whose attention is not block-diagonal."""
    effort = plan.effort
    rows = effort.num_rows(num_tokens)
    quadratic = sum(kind != "block_diagonal" for kind in kinds)
    pairs = quadratic * len(plan.heads) * rows * num_tokens
    is_usual = effort.mode != "exact" and rows <= max(SAMPLED_ROWS, effort.max_exact_tokens)
    if pairs <= limit or is_usual:
        return
    cost = (
        f"{quadratic} layers, {len(plan.heads)} heads and {num_tokens} tokens cost {pairs} pairs, "
        f"the limit is {limit}; ask for fewer heads"
    )
    if effort.mode == "exact":
        raise InvalidInput(
            f'exact rows of {cost}, or for mode "sampled", which reads {effort.sampled_rows} rows '
            "a head and states its error",
            code="exact_too_expensive",
            param="mode",
            limit=limit,
            actual=pairs,
        )
    raise InvalidInput(
        f"{rows} rows of {cost}, or for fewer rows",
        code="rows_too_expensive",
        param="sampled_rows",
        limit=limit,
        actual=pairs,
    )


def instrument_bytes(model: EmbeddingModel, num_tokens: int, effort: Effort) -> int:
    """Upper bound of what a layer's heads keep in memory from one instrument to the next."""
    calibration, info = model.calibration, model.info
    if calibration is None or not any(kind in CALIBRATED for kind in info.attention):
        return 0
    num_bytes = DiagWeightBuffer.bytes_for(
        num_heads=info.num_heads,
        num_tokens=num_tokens,
        channels=info.dim // info.num_heads,
        block_size=block_of(num_tokens, calibration.block_size, calibration.long_block),
        num_sinks=sum(calibration.num_sinks),
        dtype=effort.dtype_of(num_tokens),
    )
    return min(MAX_BUFFER_BYTES, num_bytes)


def matrix_bytes(plan: DiagnosisPlan, num_tokens: int) -> int:
    """Upper bound of what dense matrices of heads take: those that instruments share, and those
    whose singular values or eigenvalues are computed, one instrument after the other."""
    shared = kept_matrix_bytes(len(plan.heads), num_tokens, plan.effort) if plan.of_heads else 0
    copies = 0
    if EFFECTIVE_RANK in plan.instruments and plan.effort.has_all_singular_values(num_tokens):
        copies = 1
    if SPECTRAL_GAP in plan.instruments and plan.effort.has_all_eigenvalues(num_tokens):
        copies = _EIGENVALUE_COPIES
    return shared + copies * MAX_PARALLEL_GROUPS * num_tokens**2 * torch.float64.itemsize


def read_in_slices(
    model: EmbeddingModel,
    text: PreparedText,
    plan: DiagnosisPlan,
    layers: Iterator[Steps[CapturedLayer]] | None = None,
) -> Steps[list[LayerReadings]]:
    """Read the layers of the plan, in their order, with a pause after each slice of time.

    `layers` are the layers of the text, if the encoder need not compute them for this diagnosis.
    """
    return in_slices(read_layers(model, text, plan, layers), SLICE_S)


@torch.no_grad()
def read_layers(
    model: EmbeddingModel,
    text: PreparedText,
    plan: DiagnosisPlan,
    layers: Iterator[Steps[CapturedLayer]] | None = None,
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
    layer: CapturedLayer,
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
