"""From token states to one vector a text, or one a passage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from engine.checkpoint.folder import Pooling


class PooledSpan(NamedTuple):
    """Rows to be reduced to one vector."""

    start: int
    end: int
    rise: float = 0.0
    """How much more the last row weighs in a mean than the average one, and the first less."""

    def weights(self, start: int, end: int) -> Tensor:
        """Of its rows from `start` to before `end` [n, 1], in float64; 1 on average over all."""
        rows = torch.arange(start, end, dtype=torch.float64)
        place = (rows - self.start + 0.5) / (self.end - self.start)
        return (1 + self.rise * (2 * place - 1)).unsqueeze(1)


def _level(num_tokens: int) -> float:
    return 0.0


def whole_texts(
    bounds: Sequence[int], rise_of: Callable[[int], float] = _level
) -> list[PooledSpan]:
    """Packed texts, each with the rise of its length."""
    return [PooledSpan(start, end, rise_of(end - start)) for start, end in pairwise(bounds)]


def pool(states: Tensor, spans: Sequence[PooledSpan], pooling: Pooling) -> Tensor:
    """One vector for each span of rows of states [T, W]: [n, W]. Spans may overlap.

    Each span is reduced alone, so its vector does not depend on what else is in the batch.
    """
    match pooling:
        case "mean":
            pooled = [_mean(states, span) for span in spans]
        case "max":
            pooled = [states[span.start : span.end].amax(0, keepdim=True).float() for span in spans]
        case "cls":
            # Copies: a view would keep all the states for one row of them.
            pooled = [
                states[span.start : span.start + 1].to(torch.float32, copy=True) for span in spans
            ]
        case "none":
            raise ValueError("a model that does not pool gives token states, not one vector")
    return pooled[0] if len(pooled) == 1 else torch.cat(pooled)


def _mean(states: Tensor, span: PooledSpan) -> Tensor:
    inside = states[span.start : span.end]
    if span.rise:
        inside = inside * span.weights(span.start, span.end).to(states.device, torch.float32)
    return inside.mean(0, keepdim=True, dtype=torch.float32)


class SpanPools:
    """The same, for states that come tile by tile, from the first token to the last.

    Means are summed in float64, tile after tile, so that they do not depend on the tiles' size
    beyond float32's rounding, nor on the other spans.
    """

    def __init__(
        self,
        spans: Sequence[PooledSpan],
        pooling: Pooling,
        *,
        width: int,
        device: torch.device,
    ) -> None:
        assert pooling != "none", "a model that does not pool gives token states, not one vector"
        self._spans = spans
        self._starts = np.array([span.start for span in spans], dtype=np.int64)
        self._ends = np.array([span.end for span in spans], dtype=np.int64)
        self._rises = np.array([span.rise > 0 for span in spans], dtype=bool)
        self._pooling = pooling
        dtype = torch.float64 if pooling == "mean" else torch.float32
        lowest = -torch.inf if pooling == "max" else 0.0
        self._pools = torch.full((len(spans), width), lowest, dtype=dtype, device=device)

    def add(self, start: int, states: Tensor) -> None:
        """The states [n, W] of the tokens from `start` on."""
        end = start + len(states)
        touched = np.flatnonzero((self._starts < end) & (self._ends > start))
        if not len(touched):
            return
        first = np.maximum(self._starts[touched], start) - start
        last = np.minimum(self._ends[touched], end) - start
        match self._pooling:
            case "mean":
                level = ~self._rises[touched]
                self._add_sums(touched[level], first[level], last[level], states)
                for span in touched[~level]:
                    self._add_rising(span, start, states)
            case "max":
                for span, low, high in zip(touched, first, last, strict=True):
                    peak = states[low:high].amax(0).float()
                    torch.maximum(self._pools[span], peak, out=self._pools[span])
            case _:
                begin_here = self._starts[touched] >= start
                self._pools[touched[begin_here]] = states[first[begin_here]].float()

    def vectors(self, spans: slice) -> Tensor:
        """The pooled vectors of these spans, whose last tokens have been added: [n, W]."""
        pools = self._pools[spans]
        if self._pooling != "mean":
            return pools
        lengths = torch.from_numpy(self._ends[spans] - self._starts[spans]).to(pools.device)
        return (pools / lengths.unsqueeze(1)).float()

    def num_final(self, num_tokens: int, begin: int) -> int:
        """How many spans from `begin` on have seen all their tokens, after so many tokens."""
        waiting = np.flatnonzero(self._ends[begin:] > num_tokens)
        return int(waiting[0]) if len(waiting) else len(self._ends) - begin

    def _add_rising(self, number: int, start: int, states: Tensor) -> None:
        span = self._spans[number]
        first, last = max(span.start, start), min(span.end, start + len(states))
        weights = span.weights(first, last).to(states.device)
        self._pools[number] += (weights * states[first - start : last - start]).sum(0)

    def _add_sums(
        self, touched: np.ndarray, first: np.ndarray, last: np.ndarray, states: Tensor
    ) -> None:
        """Differences of running sums: one pass over the tile, however many spans there are.

        A span that holds the whole tile, as the whole text always does, takes the tile's sum.
        """
        holds_all = (first == 0) & (last == len(states))
        if holds_all.any():
            self._pools[touched[holds_all]] += states.sum(0, dtype=torch.float64)
        if holds_all.all():
            return
        begin, end = first[~holds_all], last[~holds_all]
        running = states.new_zeros(len(states) + 1, states.shape[1], dtype=torch.float64)
        torch.cumsum(states, 0, dtype=torch.float64, out=running[1:])
        self._pools[touched[~holds_all]] += running[end] - running[begin]
