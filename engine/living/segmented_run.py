"""Runs the segments of a document that are to be read through the model."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from engine.execution.inputs import PreparedText
from engine.execution.linked_run import LinkedRun
from engine.execution.linked_text import LinkedText
from engine.execution.model_runner import TiledRun
from engine.living.segmented_text import SegmentedText
from engine.model.embedding_model import EmbeddingModel
from engine.model.pooling import PooledSpan
from engine.model.segmented_pass import LayerStates, Reading, SegmentedPass, SinkRows
from engine.model.tiled_pass import TiledPass
from engine.types import Span, Vector
from kernels.attention import LLNState

RISING = 1.0
"""The slope of the second mean of a segment. From it and the plain mean follows the document's mean
with any slope, wherever the segment stands in it."""


def open_run(
    model: EmbeddingModel,
    text: PreparedText,
    *,
    keep_projections: bool,
    on_out_of_memory: Callable[[], None] = lambda: None,
) -> TiledRun:
    """The run for a text that is read tile by tile."""
    kind: type[TiledRun]
    match text:
        case SegmentedText():
            kind = SegmentedRun
        case LinkedText():
            kind = LinkedRun
        case _:
            kind = TiledRun
    return kind(model, text, keep_projections=keep_projections, on_out_of_memory=on_out_of_memory)


class SegmentedRun(TiledRun):
    """`result` holds the vectors of all that is read, of the spans asked for, and two of each
    segment: its mean, and its mean with weights that rise."""

    def _open_pass(self, *, keep_projections: bool) -> TiledPass:
        text = self._segmented
        device = self._model.encoder.device
        return SegmentedPass(
            self._model.encoder,
            text.ids,
            [reading._replace(states=_on(reading.states, device)) for reading in text.readings],
            length=text.length,
            keep_projections=keep_projections,
            first_sinks=_sinks_on(text.first_sinks, text.readings[0], device),
            last_sinks=_sinks_on(text.last_sinks, text.readings[-1], device),
        )

    def _pooled_spans(self) -> list[PooledSpan]:
        *spans, whole = super()._pooled_spans()
        segments = segment_rows(self._segmented)
        flat = [PooledSpan(start, end) for start, end in segments]
        rising = [PooledSpan(start, end, RISING) for start, end in segments]
        return [*spans, *flat, *rising, whole]

    def _finished(self) -> Vector:
        vectors = super()._finished()
        one = self._pass
        assert isinstance(one, SegmentedPass)
        host = torch.device("cpu")
        self._segmented.read.states = [
            _on(states, host) for states in zip(*one.states_read, strict=True)
        ]
        first, last = one.sinks_read
        self._segmented.read.sinks = first.to(host), last.to(host)
        return vectors

    @property
    def _segmented(self) -> SegmentedText:
        assert isinstance(self._text, SegmentedText)
        return self._text


def segment_rows(text: SegmentedText) -> list[Span]:
    """The rows of each segment that is read."""
    ends = np.cumsum([one.num_rows for one in text.readings if not one.is_kept]).tolist()
    return [Span(start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def _on(states: LayerStates, device: torch.device) -> LayerStates:
    return tuple(
        None if one is None else LLNState(*(part.to(device) for part in one)) for one in states
    )


def _sinks_on(sinks: SinkRows | None, reading: Reading, device: torch.device) -> SinkRows | None:
    """The sinks of an end that is kept; a segment that is read has its own."""
    if sinks is None or not reading.is_kept:
        return None
    return sinks.to(device)
