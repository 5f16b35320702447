"""Ragged spans of packed rows, grouped so that spans of like length are handled as one batch.

A batched product wants equal lengths. LLN's pieces are padded at most to the next step of a fine
grid inside this layout (never in the caller's tensors), and the grid depends on a span's own length
alone. Blocks of softmax are batched only with blocks of their very length: the order in which its
kernel adds up depends on how many keys there are, and a text's vector must not depend, to the last
bit, on what it is batched with. Building a layout costs host work only, and layouts of recent
shapes are kept.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from kernels.attention.arguments import Sinks

CPU_BATCH_ROWS = 4096
"""Rows of one batch on a CPU: few enough that its intermediate results stay in cache, and below
the size for which the C library takes fresh pages from the system every time."""


class RowSpan(NamedTuple):
    """A piece of one sequence, in packed rows."""

    start: int
    end: int
    sequence: int

    @property
    def length(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class SpanBatch:
    """Spans padded to one width. `contiguous` is set where they are simply adjacent rows."""

    width: int
    owners: Tensor  # [n] the sequence of each span
    starts: Tensor  # [n] first packed row of each span
    rows: Tensor  # [n * width] packed row of each slot; padding repeats the span's last row
    padding: Tensor | None  # [n, width] True where a slot is padding; None if nothing is padded
    kept: Tensor | None  # slots that are not padding, in order; None if nothing is padded
    contiguous: slice | None

    @property
    def count(self) -> int:
        return self.owners.numel()

    def gather(self, x: Tensor) -> Tensor:
        """Rows of x by slot: [n, width, ...]."""
        flat = x[self.contiguous] if self.contiguous is not None else x.index_select(0, self.rows)
        return flat.view(self.count, self.width, *flat.shape[1:])

    def scatter(self, values: Tensor, out: Tensor) -> None:
        """Write the slots of values [n, width, ...] back to their rows of out."""
        flat = values.flatten(0, 1)
        if self.contiguous is not None:
            out[self.contiguous] = flat
        elif self.kept is None:
            out.index_copy_(0, self.rows, flat)
        else:
            out.index_copy_(0, self.rows[self.kept], flat.index_select(0, self.kept))

    def covers(self, num_rows: int) -> bool:
        return self.contiguous == slice(0, num_rows)


def gather_each(batches: Sequence[SpanBatch], x: Tensor) -> Iterator[Tensor]:
    """Rows of x by slot, one batch after the other.

    Where x wants a gradient, all batches are gathered at once: the gradient of every single
    gather would be as large as x.
    """
    if len(batches) < 2 or not _wants_gradient(x):
        yield from (batch.gather(x) for batch in batches)
        return
    slots = x.index_select(0, torch.cat([batch.rows for batch in batches]))
    parts = torch.split(slots, [batch.rows.numel() for batch in batches])
    for batch, part in zip(batches, parts, strict=True):
        yield part.view(batch.count, batch.width, *x.shape[1:])


def scatter_each(batches: Sequence[SpanBatch], values: Iterable[Tensor], like: Tensor) -> Tensor:
    """The batches' slots [n, width, ...] as packed rows; together the batches cover all rows."""
    found = iter(values)
    first = next(found, None)
    if first is None or len(batches) < 2 or not _wants_gradient(first):
        out = torch.empty_like(like)
        for batch, value in zip(batches, itertools.chain([first], found), strict=False):
            assert value is not None, "there is a value for every batch"
            batch.scatter(value, out)
        return out
    slots = torch.cat([value.flatten(0, 1) for value in (first, *found)])
    return slots.index_select(0, _slot_of_each_row(batches, len(like)))


def _slot_of_each_row(batches: Sequence[SpanBatch], num_rows: int) -> Tensor:
    rows = torch.cat([batch.rows for batch in batches])
    kept = torch.cat(
        [
            torch.ones_like(batch.rows, dtype=torch.bool)
            if batch.padding is None
            else ~batch.padding.flatten()
            for batch in batches
        ]
    )
    slots = torch.arange(len(rows), device=rows.device)
    return slots.new_empty(num_rows).index_copy_(0, rows[kept], slots[kept])


def _wants_gradient(x: Tensor) -> bool:
    return torch.is_grad_enabled() and x.requires_grad


@dataclass(frozen=True)
class SinkKeys:
    """The sink tokens that the spans of one batch may see beyond their own block."""

    rows: Tensor  # [n, S] packed row of each sink
    hidden: Tensor  # [n, S] True where the sink is absent or already in the span's own block


@dataclass(frozen=True)
class BlockBatch:
    spans: SpanBatch
    sinks: SinkKeys | None  # None where no span sees a sink outside its own block


def grid_width(length: int) -> int:
    """The padded width of a span: steps of 16 at first, then of about an eighth of the length."""
    step = 16 if length <= 128 else 1 << (math.ceil(math.log2(length)) - 3)
    return -(-length // step) * step


@lru_cache(maxsize=64)
def piece_batches(
    bounds: tuple[int, ...], piece: int, device: torch.device
) -> tuple[SpanBatch, ...]:
    """Every sequence cut into pieces of `piece` rows from its start, longest batches first."""
    groups = _group(_cut(bounds, piece), grid_width, device)
    return tuple(_batch(group, width, device) for width, group in groups)


@lru_cache(maxsize=64)
def block_batches(
    bounds: tuple[int, ...], block_size: int | None, sinks: Sinks, device: torch.device
) -> tuple[BlockBatch, ...]:
    """Every sequence cut into blocks, with the sinks each block sees. None: one block each."""
    longest = max((end - start for start, end in _pairs(bounds)), default=0)
    groups = _group(_cut(bounds, block_size or max(longest, 1)), int, device)
    return tuple(
        BlockBatch(_batch(group, width, device), _sink_keys(group, bounds, sinks, device))
        for width, group in groups
    )


def _pairs(bounds: tuple[int, ...]) -> Iterable[tuple[int, int]]:
    return itertools.pairwise(bounds)


def _cut(bounds: tuple[int, ...], size: int) -> list[RowSpan]:
    return [
        RowSpan(start, min(start + size, end), sequence)
        for sequence, (first, end) in enumerate(_pairs(bounds))
        for start in range(first, end, size)
    ]


def _group(
    spans: list[RowSpan], width_of: Callable[[int], int], device: torch.device
) -> list[tuple[int, list[RowSpan]]]:
    """Spans by padded width, widest first, so that a sequence's last short piece comes last."""
    groups: dict[int, list[RowSpan]] = defaultdict(list)
    for span in spans:
        groups[width_of(span.length)].append(span)
    return [
        (width, part)
        for width in sorted(groups, reverse=True)
        for part in _parts(groups[width], _max_spans(width, device))
    ]


def _max_spans(width: int, device: torch.device) -> int | None:
    return max(1, CPU_BATCH_ROWS // width) if device.type == "cpu" else None


def _parts(spans: list[RowSpan], size: int | None) -> Iterable[list[RowSpan]]:
    step = size or len(spans)
    return (spans[at : at + step] for at in range(0, len(spans), step))


@torch.inference_mode(False)  # the tables outlive the caller's mode and may serve autograd later
def _batch(spans: list[RowSpan], width: int, device: torch.device) -> SpanBatch:
    starts = torch.tensor([span.start for span in spans])
    ends = torch.tensor([span.end for span in spans])
    slots = starts[:, None] + torch.arange(width)  # [n, width]
    padding = slots >= ends[:, None]
    padded = bool(padding.any())
    return SpanBatch(
        width=width,
        owners=torch.tensor([span.sequence for span in spans], device=device),
        starts=starts.to(device),
        rows=torch.minimum(slots, ends[:, None] - 1).flatten().to(device),
        padding=padding.to(device) if padded else None,
        kept=(~padding).flatten().nonzero().flatten().to(device) if padded else None,
        contiguous=None if padded else _contiguous(spans),
    )


def _contiguous(spans: list[RowSpan]) -> slice | None:
    adjacent = all(a.end == b.start for a, b in itertools.pairwise(spans))
    return slice(spans[0].start, spans[-1].end) if adjacent else None


@torch.inference_mode(False)
def _sink_keys(
    spans: list[RowSpan], bounds: tuple[int, ...], sinks: Sinks, device: torch.device
) -> SinkKeys | None:
    if not any(sinks):
        return None
    rows, hidden = [], []
    for span in spans:
        first, end = bounds[span.sequence], bounds[span.sequence + 1]
        seen = _sink_rows(first, end, sinks)
        outside = [row for row in seen if not span.start <= row < span.end]
        absent = sum(sinks) - len(outside)
        rows.append(outside + [first] * absent)
        hidden.append([False] * len(outside) + [True] * absent)
    hidden_mask = torch.tensor(hidden)
    if bool(hidden_mask.all()):
        return None
    return SinkKeys(torch.tensor(rows, device=device), hidden_mask.to(device))


def _sink_rows(first: int, end: int, sinks: Sinks) -> list[int]:
    """The sink rows of one sequence, each once, also where it is shorter than its sinks."""
    leading = range(first, min(first + sinks.first, end))
    trailing = range(max(end - sinks.last, leading.stop), end)
    return [*leading, *trailing]
