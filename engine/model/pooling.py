"""Pools token states into one vector for each text or passage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.checkpoint.folder import Pooling
from engine.types import Span


class PooledSpan(NamedTuple):
    """Rows that are pooled into one vector."""

    start: int
    end: int
    slope: float = 0.0
    """In a mean, weights grow linearly from 1 - slope at the start to 1 + slope at the end."""

    def weights(self, start: int, end: int) -> Tensor:
        """The weights [n, 1] of the rows from `start` to `end`, in float64; 1 on average."""
        rows = torch.arange(start, end, dtype=torch.float64)
        place = (rows - self.start + 0.5) / (self.end - self.start)
        return (1 + self.slope * (2 * place - 1)).unsqueeze(1)


def whole_texts(
    bounds: Sequence[int], slope_of: Callable[[int], float] = lambda num_tokens: 0.0
) -> list[PooledSpan]:
    """One span for each packed text, with the slope for its length."""
    return [PooledSpan(start, end, slope_of(end - start)) for start, end in pairwise(bounds)]


def pool(states: Tensor, spans: Sequence[PooledSpan], pooling: Pooling) -> Tensor:
    """One vector for each span of rows of states [T, W]: [n, W]. Spans may overlap.

    Each span is pooled alone, so its vector does not depend on the rest of the batch.
    """
    match pooling:
        case "mean":
            pooled = [_mean(states, span) for span in spans]
        case "max":
            pooled = [states[span.start : span.end].amax(0, keepdim=True).float() for span in spans]
        case "cls":
            # Copies: a view of one row would keep all states in memory.
            pooled = [
                states[span.start : span.start + 1].to(torch.float32, copy=True) for span in spans
            ]
        case "none":
            raise ValueError("a model without pooling gives token states, not one vector")
    return pooled[0] if len(pooled) == 1 else torch.cat(pooled)


def _mean(states: Tensor, span: PooledSpan) -> Tensor:
    inside = states[span.start : span.end]
    if span.slope:
        inside = inside * span.weights(span.start, span.end).to(states.device, torch.float32)
    return inside.mean(0, keepdim=True, dtype=torch.float32)


class SpanPools:
    """Pools states that arrive tile by tile, from the first token to the last.

    Means are summed in float64. So they depend neither on the other spans nor, apart from the final
    rounding to float32, on the size of the tiles.
    """

    def __init__(
        self,
        spans: Sequence[PooledSpan],
        pooling: Pooling,
        *,
        width: int,
        device: torch.device,
    ) -> None:
        assert pooling != "none", "a model without pooling gives token states, not one vector"
        self._spans = spans
        self._starts = np.array([span.start for span in spans], dtype=np.int64)
        self._ends = np.array([span.end for span in spans], dtype=np.int64)
        self._is_sloped = np.array([span.slope > 0 for span in spans], dtype=bool)
        self._pooling = pooling
        dtype = torch.float64 if pooling == "mean" else torch.float32
        lowest = -torch.inf if pooling == "max" else 0.0
        self._pools = torch.full((len(spans), width), lowest, dtype=dtype, device=device)

    def add(self, start: int, states: Tensor) -> None:
        """Adds the states [n, W] of the tokens from `start` on."""
        end = start + len(states)
        touched = self.touched_by(Span(start, end))
        if not len(touched):
            return
        first = np.maximum(self._starts[touched], start) - start
        last = np.minimum(self._ends[touched], end) - start
        match self._pooling:
            case "mean":
                flat = ~self._is_sloped[touched]
                self._add_sums(touched[flat], first[flat], last[flat], states)
                for span in touched[~flat]:
                    self._add_sloped(span, start, states)
            case "max":
                for span, low, high in zip(touched, first, last, strict=True):
                    peak = states[low:high].amax(0).float()
                    torch.maximum(self._pools[span], peak, out=self._pools[span])
            case _:
                begin_here = self._starts[touched] >= start
                self._pools[touched[begin_here]] = states[first[begin_here]].float()

    def vectors(self, spans: slice) -> Tensor:
        """The vectors [n, W] of these spans. All of their tokens must have been added."""
        pools = self._pools[spans]
        if self._pooling != "mean":
            return pools
        lengths = torch.from_numpy(self._ends[spans] - self._starts[spans]).to(pools.device)
        return (pools / lengths.unsqueeze(1)).float()

    def touched_by(self, rows: Span) -> NDArray[np.int64]:
        """The spans that hold some of these rows."""
        return np.flatnonzero((self._starts < rows.end) & (self._ends > rows.start))

    def partial(self) -> Tensor:
        """What was added so far, [spans, W]: sums, peaks or first rows."""
        return self._pools

    def merge(self, rows: Span, partial: Tensor) -> None:
        """Adds what another reader of the same spans added of these rows: `partial` of the spans
        that they touch."""
        touched = self.touched_by(rows)
        match self._pooling:
            case "mean":
                self._pools[touched] += partial
            case "max":
                self._pools[touched] = torch.maximum(self._pools[touched], partial)
            case _:
                begin_there = self._starts[touched] >= rows.start
                self._pools[touched[begin_there]] = partial[begin_there]

    def num_final(self, num_tokens: int, begin: int) -> int:
        """How many spans in a row, from `begin` on, are complete after this many tokens."""
        waiting = np.flatnonzero(self._ends[begin:] > num_tokens)
        return int(waiting[0]) if len(waiting) else len(self._ends) - begin

    def _add_sloped(self, number: int, start: int, states: Tensor) -> None:
        span = self._spans[number]
        first, last = max(span.start, start), min(span.end, start + len(states))
        weights = span.weights(first, last).to(states.device)
        self._pools[number] += (weights * states[first - start : last - start]).sum(0)

    def _add_sums(
        self, touched: np.ndarray, first: np.ndarray, last: np.ndarray, states: Tensor
    ) -> None:
        """Adds differences of running sums: one pass over the tile for any number of spans.

        A span that contains the whole tile, as the whole text always does, gets the tile's sum.
        """
        is_whole = (first == 0) & (last == len(states))
        if is_whole.any():
            self._pools[touched[is_whole]] += states.sum(0, dtype=torch.float64)
        if is_whole.all():
            return
        begin, end = first[~is_whole], last[~is_whole]
        running = states.new_zeros(len(states) + 1, states.shape[1], dtype=torch.float64)
        torch.cumsum(states, 0, dtype=torch.float64, out=running[1:])
        self._pools[touched[~is_whole]] += running[end] - running[begin]
