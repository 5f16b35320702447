"""One long text on the device: a step at a time, with vectors that come as they become final."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TypeAlias

import torch

from engine.memory import is_out_of_memory, let_go_of_caches
from engine.model.embedding_model import EmbeddingModel
from engine.model.encoder import Encoder
from engine.model.pooling import SpanPools
from engine.model.tiles import TiledPass, Visit
from engine.prepare import Prepared
from engine.runner import to_host
from engine.types import Progress, Vector


@dataclass(frozen=True)
class PooledSpans:
    """Vectors of the text's next spans, the whole text (its first one) aside."""

    first: int
    vectors: Vector  # [n, dim]


SweepEvent: TypeAlias = Progress | PooledSpans


class Sweep:
    """A text's way through the model. `result` is set when `step` has run often enough."""

    def __init__(
        self,
        model: EmbeddingModel,
        text: Prepared,
        *,
        keep_projections: bool = True,
        on_out_of_memory: Callable[[], None] = lambda: None,
    ) -> None:
        encoder = model.encoder
        self._on_out_of_memory = on_out_of_memory
        self._pass = self._begin(encoder, text, keep_projections)
        self._device = encoder.device
        self._num_tokens = len(text.ids)
        self._num_layers = len(encoder.weights.layers)
        self._work = LayerWork.of(model)
        self._work_done = 0.0
        self._began_at: float | None = None
        self._pools: SpanPools | None = None
        if model.checkpoint.pooling != "none":
            # The whole text comes last: it is final only when everything is.
            spans = [*text.spans[1:], text.spans[0]]
            self._pools = SpanPools(
                model.pools(spans, text.num_embedded),
                model.checkpoint.pooling,
                width=encoder.weights.width,
                device=encoder.device,
            )
        self._num_told = 0
        self._num_parts = len(text.spans) - 1
        self.result: Vector | None = None

    @torch.inference_mode()
    def step(self) -> Sequence[SweepEvent]:
        """One tile through one layer, and what there is to tell of it."""
        if self._began_at is None:
            self._began_at = perf_counter()
        visit = self._visit()
        self._work_done += self._work.of_visit(visit, self._num_layers)
        events: list[SweepEvent] = [self._progress()]
        if visit.layer == self._num_layers - 1:
            events += self._pooled(visit)
        if self._pass.is_done:
            self.result = self._finished()
        return events

    def _begin(self, encoder: Encoder, text: Prepared, keep_projections: bool) -> TiledPass:
        """With kept projections if they were planned and fit; without them otherwise."""
        if keep_projections:
            try:
                return TiledPass(encoder, text.ids, keep_projections=True)
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                self._on_out_of_memory()
        return TiledPass(encoder, text.ids, keep_projections=False)

    def _visit(self) -> Visit:
        """The next tile, in smaller and smaller pieces while it does not fit in memory."""
        while True:
            try:
                return self._pass.visit()
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error) or not self._pass.shrink():
                    raise
                # Its frames would keep the tensors that are in the way.
                traceback.clear_frames(error.__traceback__)
            self._on_out_of_memory()
            let_go_of_caches(self._device)

    def _progress(self) -> Progress:
        share = min(self._work_done / self._work.of_text(self._num_tokens, self._num_layers), 1.0)
        assert self._began_at is not None, "set by the first step"
        elapsed_s = perf_counter() - self._began_at
        done = self._num_tokens if self._pass.is_done else int(share * self._num_tokens)
        return Progress(
            tokens_done=done,
            tokens_total=self._num_tokens,
            seconds_left=elapsed_s * (1 - share) / share,
        )

    def _pooled(self, visit: Visit) -> list[SweepEvent]:
        if self._pools is None:
            return []
        self._pools.add(visit.rows.start, visit.states)
        first = self._num_told
        count = self._pools.num_final(visit.rows.end, first)
        self._num_told = min(first + count, self._num_parts)
        if self._num_told == first:
            return []
        return [PooledSpans(first, to_host(self._pools.vectors(slice(first, self._num_told))))]

    def _finished(self) -> Vector:
        if self._pools is None:
            return to_host(self._pass.states)
        chunks = self._pools.vectors(slice(0, self._num_parts))
        whole = self._pools.vectors(slice(self._num_parts, None))
        return to_host(torch.cat([whole, chunks]))


@dataclass(frozen=True)
class LayerWork:
    """Multiplications a token costs, by part of a layer."""

    project: int
    rest: int

    @classmethod
    def of(cls, model: EmbeddingModel) -> LayerWork:
        layer = model.encoder.weights.layers[0]
        rest = (layer.attention_out, layer.ffn_in, layer.ffn_out)
        return cls(
            project=math.prod(layer.qkv.weight.shape),
            rest=sum(math.prod(part.weight.shape) for part in rest),
        )

    def of_visit(self, visit: Visit, num_layers: int) -> float:
        """A visit ends one layer and makes the projections of the next."""
        a_token = self.rest * (visit.layer >= 0) + self.project * (visit.layer + 1 < num_layers)
        return a_token * (visit.rows.end - visit.rows.start)

    def of_text(self, num_tokens: int, num_layers: int) -> float:
        return (self.project + self.rest) * num_layers * num_tokens
