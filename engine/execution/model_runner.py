"""Prepared texts through the model: a packed batch in one pass, or one long text tile by tile."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from time import perf_counter
from typing import TypeAlias

import numpy as np
import torch

from engine.execution.inputs import PreparedText
from engine.model.embedding_model import EmbeddingModel
from engine.model.pooling import PooledSpan, SpanPools, pool
from engine.model.tiled_pass import TiledPass, Visit
from engine.platform.memory import empty_device_cache, is_out_of_memory
from engine.types import Progress, Vector


@torch.inference_mode()
def run_batch(model: EmbeddingModel, texts: Sequence[PreparedText]) -> list[Vector]:
    """Encode the texts in one pass and pool their spans: one array [spans, dim] for each text.

    A model that does not pool returns the token states of each text. Texts are packed in order of
    length: attention then finds texts that it can batch side by side, and copies none.
    """
    order = sorted(range(len(texts)), key=lambda at: texts[at].num_embedded)
    found = dict(zip(order, _run_packed(model, [texts[at] for at in order]), strict=True))
    return [found[at] for at in range(len(texts))]


def _run_packed(model: EmbeddingModel, texts: Sequence[PreparedText]) -> list[Vector]:
    ids, bounds = pack(texts, model.encoder.device)
    states = model.encoder(ids, bounds)
    if model.checkpoint.pooling == "none":
        return [to_host(states[start:end]) for start, end in pairwise(bounds)]
    spans = [
        span
        for start, text in zip(bounds, texts, strict=False)
        for span in model.pools(text.spans, text.num_embedded, at=start)
    ]
    pooled = to_host(pool(states, spans, model.checkpoint.pooling))
    ends = list(accumulate(len(text.spans) for text in texts))
    return [pooled[start:end] for start, end in pairwise([0, *ends])]


def pack(texts: Sequence[PreparedText], device: torch.device) -> tuple[torch.Tensor, list[int]]:
    """All ids in one row, and the positions where each text begins and ends."""
    rows = texts[0].ids if len(texts) == 1 else np.concatenate([text.ids for text in texts])
    ids = torch.from_numpy(rows.astype(np.int64))
    bounds = [0, *accumulate(text.num_embedded for text in texts)]
    return ids.to(device), bounds


def to_host(tensor: torch.Tensor) -> Vector:
    vectors: Vector = tensor.float().cpu().numpy()
    return vectors


@dataclass(frozen=True)
class PooledSpans:
    """Final vectors of the text's next spans. The whole text, its first span, does not count."""

    first: int  # which of the spans `vectors` begins with
    vectors: Vector  # [n, dim]


TiledEvent: TypeAlias = Progress | PooledSpans


class TiledRun:
    """Runs one text through the model, a tile at a time. `result` is set by the last step."""

    num_ranks = 1

    def __init__(
        self,
        model: EmbeddingModel,
        text: PreparedText,
        *,
        keep_projections: bool = True,
        on_out_of_memory: Callable[[], None] = lambda: None,
    ) -> None:
        encoder = model.encoder
        self._on_out_of_memory = on_out_of_memory
        self._model, self._text = model, text
        self._pass = self._begin(keep_projections)
        self._device = encoder.device
        self._num_tokens = len(text.ids)
        self._num_layers = len(encoder.weights.layers)
        self._work = LayerWork.of(model)
        self._work_done = 0.0
        self._began_at: float | None = None
        self._pools: SpanPools | None = None
        self._num_spans = 0
        if model.checkpoint.pooling != "none":
            pooled = self._pooled_spans()
            self._num_spans = len(pooled) - 1
            self._pools = SpanPools(
                pooled,
                model.checkpoint.pooling,
                width=encoder.weights.width,
                device=encoder.device,
            )
        self._num_reported = 0
        self.result: Vector | None = None

    @torch.inference_mode()
    def step(self) -> Sequence[TiledEvent]:
        """Run one tile through one layer; return the progress and the spans that are now final."""
        events = self._read_tile()
        if self._pass.is_done:
            self.result = self._finished()
        return events

    def close(self) -> None:
        """Called when nobody waits for the rest."""

    def _read_tile(self) -> list[TiledEvent]:
        if self._began_at is None:
            self._began_at = perf_counter()
        visit = self._visit()
        self._work_done += self._work.of_visit(visit, self._num_layers)
        events: list[TiledEvent] = [self._progress()]
        if visit.layer == self._num_layers - 1:
            events += self._pooled(visit)
        return events

    def _begin(self, keep_projections: bool) -> TiledPass:
        """Keep the projections if that was planned and they fit in memory."""
        if keep_projections:
            try:
                return self._open_pass(keep_projections=True)
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                self._on_out_of_memory()
        return self._open_pass(keep_projections=False)

    def _open_pass(self, *, keep_projections: bool) -> TiledPass:
        return TiledPass(self._model.encoder, self._text.ids, keep_projections=keep_projections)

    def _pooled_spans(self) -> list[PooledSpan]:
        """The whole text comes last: it is final only when everything else is."""
        spans = [*self._text.spans[1:], self._text.spans[0]]
        return self._model.pools(spans, self._text.num_embedded)

    def _visit(self) -> Visit:
        """Visit the next tile, in smaller and smaller pieces while it does not fit in memory."""
        while True:
            try:
                return self._pass.visit()
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error) or not self._pass.shrink():
                    raise
                # The frames of the error would keep its tensors alive.
                traceback.clear_frames(error.__traceback__)
            self._on_out_of_memory()
            empty_device_cache(self._device)

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

    def _pooled(self, visit: Visit) -> list[TiledEvent]:
        if self._pools is None:
            return []
        self._pools.add(visit.rows.start, visit.states)
        first = self._num_reported
        count = self._pools.num_final(visit.rows.end, first)
        self._num_reported = min(first + count, self._num_spans)
        if self._num_reported == first:
            return []
        return [PooledSpans(first, to_host(self._pools.vectors(slice(first, self._num_reported))))]

    def _finished(self) -> Vector:
        if self._pools is None:
            return to_host(self._pass.states)
        chunks = self._pools.vectors(slice(0, self._num_spans))
        whole = self._pools.vectors(slice(self._num_spans, None))
        return to_host(torch.cat([whole, chunks]))


@dataclass(frozen=True)
class LayerWork:
    """Multiplications per token, by part of a layer."""

    project: int
    rest: int

    @classmethod
    def of(cls, model: EmbeddingModel) -> LayerWork:
        layer = model.encoder.weights.layers[0]
        rest = (layer.attention_out, layer.ffn_in, layer.ffn_out)
        return cls(
            project=layer.qkv.num_weights,
            rest=sum(part.num_weights for part in rest),
        )

    def of_visit(self, visit: Visit, num_layers: int) -> float:
        """A visit ends one layer and computes the projections of the next."""
        a_token = self.rest * (visit.layer >= 0) + self.project * (visit.layer + 1 < num_layers)
        return a_token * (visit.rows.end - visit.rows.start)

    def of_text(self, num_tokens: int, num_layers: int) -> float:
        return (self.project + self.rest) * num_layers * num_tokens
