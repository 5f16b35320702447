"""One rank's part in reading a document: its tiles, the exchange before each layer, the pools."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import sleep
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from engine.execution.inputs import PreparedText
from engine.execution.model_runner import PooledSpans, TiledEvent, TiledRun, to_host
from engine.model.embedding_model import EmbeddingModel
from engine.model.pooling import PooledSpan
from engine.model.stretch_pass import Layout, StretchPass, divide
from engine.model.tiled_pass import TiledPass, Visit
from engine.ranks.exchange import Exchange, Pending
from engine.types import Progress, Span, Vector

_PAUSES_S = (0.0002, 0.0004, 0.0008, 0.0016)
"""How a step waits for the other ranks. Other work of the first rank waits as long."""


@dataclass(frozen=True, kw_only=True)
class StretchText(PreparedText):
    """A rank's stretch of a text; `ids` are its own."""

    rank: int
    stretches: tuple[Span, ...]
    pools: tuple[PooledSpan, ...]
    """The spans that this rank pools, in rows of the whole text. The first rank has all of them:
    it receives what the others pooled."""

    gathered_rows: int
    """Rows that each rank gives to the first at the end: as many as the rank with the most."""

    @property
    def stretch(self) -> Span:
        return self.stretches[self.rank]

    @property
    def length(self) -> int:
        return self.stretches[-1].end


def divide_text(model: EmbeddingModel, text: PreparedText, num_ranks: int) -> list[StretchText]:
    """The parts of a text, one for each rank."""
    stretches = divide(model.encoder, text.num_embedded, num_ranks)
    # The whole text comes last: it is final only when everything else is.
    spans = model.pools([*text.spans[1:], text.spans[0]], text.num_embedded)
    if model.checkpoint.pooling == "none":
        pools: list[tuple[PooledSpan, ...]] = [()] * num_ranks
        rows = max(end - start for start, end in stretches)
    else:
        pools = [_touched(spans, stretch) for stretch in stretches]
        rows = max(map(len, pools[1:]), default=0)
        pools[0] = tuple(spans)
    return [
        StretchText(
            ids=text.ids[stretch.start : stretch.end],
            spans=(),
            chunks=(),
            num_tokens=stretch.end - stretch.start,
            dropped=None,
            rank=rank,
            stretches=stretches,
            pools=pools[rank],
            gathered_rows=rows,
        )
        for rank, stretch in enumerate(stretches)
    ]


def _touched(spans: Sequence[PooledSpan], rows: Span) -> tuple[PooledSpan, ...]:
    return tuple(span for span in spans if span.start < rows.end and span.end > rows.start)


class RankRun(Protocol):
    """A rank's part of one reading."""

    result: Vector | None
    num_ranks: int

    def step(self) -> Sequence[TiledEvent]: ...

    def close(self) -> None: ...


class StretchRun(TiledRun):
    """Runs one stretch, a tile at a time, and waits for the other ranks between layers.

    `result` is set by the last step: on the first rank to the vectors of the whole text, on the
    others to an empty array.
    """

    def __init__(
        self,
        model: EmbeddingModel,
        text: StretchText,
        exchange: Exchange,
        *,
        keep_projections: bool,
        on_out_of_memory: Callable[[], None] = lambda: None,
        on_close: Callable[[bool], None] = lambda is_done: None,
    ) -> None:
        """`on_close` is called once, with whether the reading came to its end."""
        self._stretch_text = text
        self.num_ranks = len(text.stretches)
        self._exchange = exchange
        self._pending: Pending | None = None
        self._on_close: Callable[[bool], None] | None = on_close
        super().__init__(
            model, text, keep_projections=keep_projections, on_out_of_memory=on_out_of_memory
        )

    @torch.inference_mode()
    def step(self) -> Sequence[TiledEvent]:
        """Run one tile, or wait a moment for the other ranks."""
        if self._pending is not None:
            return self._receive(self._pending)
        events = self._read_tile()
        if self._stretch.awaits_others:
            self._pending = self._exchange.all_gather(self._stretch.contribution())
        elif self._stretch.is_done:
            self._pending = self._exchange.gather(self._given())
        return events

    def close(self) -> None:
        if self._on_close is not None:
            on_close, self._on_close = self._on_close, None
            on_close(self.result is not None)

    @property
    def _stretch(self) -> StretchPass:
        assert isinstance(self._pass, StretchPass)
        return self._pass

    def _open_pass(self, *, keep_projections: bool) -> TiledPass:
        text = self._stretch_text
        return StretchPass(
            self._model.encoder,
            text.ids,
            text.stretches,
            text.rank,
            keep_projections=keep_projections,
        )

    def _pooled_spans(self) -> list[PooledSpan]:
        return list(self._stretch_text.pools)

    def _pooled(self, visit: Visit) -> list[TiledEvent]:
        if self._pools is not None:
            self._pools.add(self._stretch_text.stretch.start + visit.rows.start, visit.states)
        return []

    def _progress(self) -> Progress:
        """Tokens of the whole text, supposing that the other ranks are as far."""
        own, text = super()._progress(), self._stretch_text
        share = own.tokens_done / own.tokens_total
        return replace(own, tokens_done=int(share * text.length), tokens_total=text.length)

    def _receive(self, pending: Pending) -> Sequence[TiledEvent]:
        gathered = _polled(pending)
        if gathered is None:
            return []
        self._pending = None
        if self._stretch.awaits_others:
            self._stretch.receive(gathered)
            return []
        return self._end(gathered)

    def _given(self) -> Tensor:
        """What the first rank needs of this one in the end. Of its own rows it needs nothing."""
        text = self._stretch_text
        own = self._pass.states if self._pools is None else self._pools.partial()
        given = own.new_zeros(text.gathered_rows, own.shape[1])
        if text.rank:
            given[: len(own)] = own
        return given

    def _end(self, gathered: Tensor) -> Sequence[TiledEvent]:
        text = self._stretch_text
        if text.rank:
            self.result = np.empty((0, 0), dtype=np.float32)
            return []
        others = list(zip(text.stretches, gathered, strict=True))[1:]
        if self._pools is None:
            states = [part[: rows.end - rows.start] for rows, part in others]
            self.result = to_host(torch.cat([self._pass.states, *states]))
            return []
        for rows, part in others:
            self._pools.merge(rows, part[: len(self._pools.touched_by(rows))])
        self.result = self._finished()
        return [PooledSpans(0, self.result[1:])] if self._num_spans else []


class EmptyRun:
    """The part of a rank that has no rows: it gives what leaves the others' sums as they are."""

    def __init__(self, model: EmbeddingModel, text: StretchText, exchange: Exchange) -> None:
        self._model, self._text, self._exchange = model, text, exchange
        self.num_ranks = len(text.stretches)
        self._layer = 0
        self._pending: Pending | None = None
        self.result: Vector | None = None

    @torch.inference_mode()
    def step(self) -> Sequence[TiledEvent]:
        num_layers = len(self._model.encoder.weights.layers)
        if self._pending is None:
            self._pending = self._begin(num_layers)
        if _polled(self._pending) is None:
            return []
        self._pending = None
        self._layer += 1
        if self._layer > num_layers:
            self.result = np.empty((0, 0), dtype=np.float32)
        return []

    def close(self) -> None:
        """Does nothing: there is nothing to free."""

    def _begin(self, num_layers: int) -> Pending:
        encoder, text = self._model.encoder, self._text
        if self._layer < num_layers:
            layout = Layout.of(encoder, self._layer, text.length)
            return self._exchange.all_gather(layout.empty(encoder.device))
        like = encoder.weights.words
        dtype = torch.float64 if self._model.checkpoint.pooling == "mean" else torch.float32
        if self._model.checkpoint.pooling == "none":
            dtype = encoder.weights.state_dtype
        shape = (text.gathered_rows, encoder.weights.width)
        return self._exchange.gather(like.new_zeros(shape, dtype=dtype))


def _polled(pending: Pending) -> Tensor | None:
    """What was exchanged, if it comes within a moment."""
    for pause_s in _PAUSES_S:
        if (gathered := pending.poll()) is not None:
            return gathered
        sleep(pause_s)
    return pending.poll()


def open_rank(
    model: EmbeddingModel,
    text: StretchText,
    exchange: Exchange,
    *,
    keep_projections: bool,
    on_out_of_memory: Callable[[], None] = lambda: None,
    on_close: Callable[[bool], None] = lambda is_done: None,
) -> RankRun:
    if not len(text.ids):
        return EmptyRun(model, text, exchange)
    return StretchRun(
        *(model, text, exchange),
        keep_projections=keep_projections,
        on_out_of_memory=on_out_of_memory,
        on_close=on_close,
    )
