"""Batches of short texts on a CPU: two halves, side by side."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from concurrent.futures import Future
from functools import cache
from itertools import pairwise, takewhile
from typing import NamedTuple

import torch
from torch import Tensor

from engine.model.linear import product_kinds
from engine.model.weights import EncoderWeights
from engine.platform.float_products import ProductKind, first_rows
from engine.platform.lanes import Lanes, lanes_of
from kernels.attention.processor import multiplies_bfloat16_tiles

_LARGER_HALF = 0.56
"""Up to this share of the rows in one half, two halves take less time than the whole."""

Bounds = Sequence[int]


class ShortBatches(NamedTuple):
    most: int
    """Tokens of a short text. Its attention is softmax alone, which gives the same bits on any
    number of threads. What LLN does beyond a block may not."""

    lanes: Lanes
    rows_agree: Future[bool]

    def split(self, bounds: Bounds) -> tuple[Sequence[Bounds], Sequence[Bounds]]:
        """The bounds of two halves of the short sequences, which come first, and of the rest.

        If halves would take longer than the whole, there are none, and everything is the rest.
        """
        if self._is_ready():
            lengths = (end - start for start, end in pairwise(bounds))
            num_short = sum(1 for _ in takewhile(lambda length: length <= self.most, lengths))
            short, rest = bounds[: num_short + 1], bounds[num_short:]
            if halves := halves_of(short):
                return halves, [rest] if len(rest) > 1 else []
        return [], [bounds]

    def _is_ready(self) -> bool:
        """Whether lanes give the same bits, and suit the settings of this thread."""
        return (
            self.rows_agree.done()
            and self.rows_agree.result()
            and torch.get_num_threads() == self.lanes.num_threads
            and not torch.is_grad_enabled()
            and not torch.is_autocast_enabled("cpu")
        )


def halves_of(bounds: Bounds) -> Sequence[Bounds]:
    """Bounds cut in the middle, as nearly as sequences allow. Empty if they do not allow it."""
    start, end = bounds[0], bounds[-1]
    middle = (start + end) / 2
    after = bisect_left(bounds, middle)
    cut = min((after - 1, after), key=lambda at: abs(bounds[at] - middle))
    larger = max(bounds[cut] - start, end - bounds[cut])
    return [bounds[: cut + 1], bounds[cut:]] if 0 < larger <= _LARGER_HALF * (end - start) else []


def short_batches(weights: EncoderWeights, *, most: int) -> ShortBatches | None:
    """None if torch has one thread (or an odd number), or if bits depend on how many it has."""
    if weights.attention_dtype is torch.bfloat16 and multiplies_bfloat16_tiles():
        return None  # attention in tiles packs rows by what each thread has to do
    lanes = lanes_of(torch.get_num_threads())
    return (
        None if lanes is None else ShortBatches(most, lanes, _agree(product_kinds(weights), lanes))
    )


@cache
def _agree(kinds: tuple[ProductKind, ...], lanes: Lanes) -> Future[bool]:
    """Whether products give a row the same bits on a lane as on all threads.

    Batches are read whole until this is known, so that a server's start does not wait for it.
    """
    rows = [first_rows(kind) for kind in kinds]

    def agree_on_lane(on_all_threads: Sequence[Sequence[Tensor]]) -> bool:
        return all(
            torch.equal(one, other)
            for kind, found in zip(kinds, on_all_threads, strict=True)
            for one, other in zip(first_rows(kind), found, strict=True)
        )

    return lanes.submit(agree_on_lane, rows)
