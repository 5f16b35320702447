"""One text's diagnosis: the encoder walked layer by layer, its heads measured on the way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor

from engine.answers import accounting
from engine.diagnostics import HeadView, Reading, find_instruments, measure
from engine.errors import InvalidInput
from engine.maps.cache import ByteCache
from engine.maps.document import OpenDocument
from engine.maps.pauses import PAUSE, Pause
from engine.maps.walk import queries_and_keys
from engine.model.attention import (
    LayerAttention,
    LLNDiagAttention,
    SlidingWindowAttention,
    SoftmaxAttention,
)
from engine.model.embedding_model import EmbeddingModel
from engine.prepare import Prepared
from engine.runner import pack
from engine.thread import Delivered
from engine.types import Diagnosis, HeadValues


@dataclass(frozen=True, kw_only=True)
class DiagnosisPlan:
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    instruments: tuple[str, ...]


@dataclass(frozen=True)
class LayerReadings:
    """What the instruments read from one layer, and how long each took."""

    readings: Mapping[str, Reading]
    seconds: Mapping[str, float]


def plan_diagnosis(
    model: EmbeddingModel,
    layers: Sequence[int] | None,
    heads: Sequence[int] | None,
    instruments: Sequence[str] | None,
) -> DiagnosisPlan:
    """Everything that was not asked for in particular, and nothing that does not exist."""
    return DiagnosisPlan(
        layers=_readable_layers(layers, model),
        heads=_chosen("heads", heads, model.info.num_heads),
        instruments=tuple(one.name for one in find_instruments(instruments)),
    )


@torch.no_grad()
def readings_by_layer(
    model: EmbeddingModel, text: Prepared, plan: DiagnosisPlan
) -> Iterator[LayerReadings | Pause]:
    """Pauses, and the chosen layers' readings in the order of the layers."""
    ids, bounds = pack([text], model.encoder.device)
    seen: list[tuple[Tensor, Tensor]] = []
    states = model.encoder.walk(ids, bounds, tap=lambda _, q, k, v: seen.append((q, k)))
    for layer, _ in enumerate(states):
        q, k = seen.pop()
        if layer in plan.layers:
            view = head_view(model.encoder.attention[layer], q, k).only(plan.heads)
            yield _measured(view, plan.instruments)
        if layer >= max(plan.layers):
            return


@torch.no_grad()
def readings_of_open(
    document: OpenDocument, plan: DiagnosisPlan, cache: ByteCache
) -> Iterator[LayerReadings | Pause]:
    """The same of a document opened before, which need not be walked again."""
    for layer in plan.layers:
        q, k = yield from queries_and_keys(document, layer, cache)
        view = head_view(document.model.encoder.attention[layer], q, k).only(plan.heads)
        parts = []
        for name in plan.instruments:
            parts.append(_measured(view, [name]))
            yield PAUSE
        yield _joined(parts)


def _joined(parts: Sequence[LayerReadings]) -> LayerReadings:
    return LayerReadings(
        {name: reading for part in parts for name, reading in part.readings.items()},
        {name: seconds for part in parts for name, seconds in part.seconds.items()},
    )


def _readable_layers(asked: Sequence[int] | None, model: EmbeddingModel) -> tuple[int, ...]:
    """All layers but those of a sliding window, which the instruments cannot read."""
    windowed = {
        layer for layer, kind in enumerate(model.info.attention) if kind == "sliding_window"
    }
    if asked is None:
        return tuple(layer for layer in range(model.info.num_layers) if layer not in windowed)
    layers = _chosen("layers", asked, model.info.num_layers)
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


def head_view(attention: LayerAttention, q: Tensor, k: Tensor) -> HeadView:
    """The layer's heads as the instruments see them: what the encoder really computed."""
    if isinstance(attention, SoftmaxAttention):
        return HeadView(q=q, k=k, attention="softmax")
    assert not isinstance(attention, SlidingWindowAttention), "no plan holds such a layer"
    lln = attention.parameters
    kind = attention.kind
    if isinstance(attention, LLNDiagAttention) and len(q) <= lln.block_size:
        kind = "block_diagonal"  # one block, where LLN takes no share
    return HeadView(
        q=q,
        k=k,
        attention=kind,
        alpha=lln.alpha,
        beta=lln.beta,
        mix=lln.shares(q),
        block_size=lln.block_size,
        num_sinks=lln.num_sinks,
        q_map=lln.q_map,
        k_map=lln.k_map,
    )


def diagnosis_of(
    model: EmbeddingModel,
    text: Prepared,
    plan: DiagnosisPlan,
    turns: Sequence[Delivered[LayerReadings | Pause]],
) -> Diagnosis:
    total = Delivered(None, turns[0].queue_s, sum(turn.compute_s for turn in turns))
    layers = [turn.value for turn in turns if isinstance(turn.value, LayerReadings)]
    return Diagnosis(
        model=model.name,
        tokens=text.num_embedded,
        layers=plan.layers,
        heads=plan.heads,
        attention=tuple(model.info.attention[layer] for layer in plan.layers),
        instruments=tuple(_head_values(name, layers) for name in plan.instruments),
        accounting=accounting(text, total),
    )


def _measured(view: HeadView, instruments: Sequence[str]) -> LayerReadings:
    readings: dict[str, Reading] = {}
    seconds: dict[str, float] = {}
    for name in instruments:
        started_at = perf_counter()
        readings.update(measure(view, [name]))
        seconds[name] = perf_counter() - started_at
    return LayerReadings(readings, seconds)


def _head_values(name: str, layers: Sequence[LayerReadings]) -> HeadValues:
    readings = [layer.readings[name] for layer in layers]
    exact = all(reading.error is None for reading in readings)
    return HeadValues(
        instrument=name,
        unit=readings[0].unit,
        method="; ".join(dict.fromkeys(reading.method for reading in readings)),
        values=tuple(tuple(reading.values.tolist()) for reading in readings),
        error=None if exact else tuple(_errors(reading) for reading in readings),
        compute_s=sum(layer.seconds[name] for layer in layers),
    )


def _errors(reading: Reading) -> tuple[float, ...]:
    """An exact layer beside sampled ones has no error."""
    if reading.error is None:
        return (0.0,) * len(reading.values)
    return tuple(reading.error.tolist())


def _chosen(param: str, asked: Sequence[int] | None, count: int) -> tuple[int, ...]:
    if asked is None:
        return tuple(range(count))
    if not asked:
        raise InvalidInput(f"{param} is empty", code=f"invalid_{param}", param=param)
    for index in asked:
        if not 0 <= index < count:
            raise InvalidInput(
                f"{param} holds {index}; the model has 0 to {count - 1}",
                code=f"invalid_{param}",
                param=param,
                limit=count - 1,
                actual=index,
            )
    return tuple(sorted(set(asked)))
