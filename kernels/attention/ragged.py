"""Layouts of packed rows on a CPU: spans of like length become one batched product.

A batched product needs equal lengths. LLN's pieces are padded inside this layout (never in the
caller's tensors) to the next step of a fine grid, which depends on a span's own length alone.
Blocks of softmax are batched only with blocks of the same length: the order in which its kernel
adds up depends on how many keys there are, and a text's vector must be the same to the last bit
whatever it is batched with. Sliding windows have blocks of queries, each beside the keys in reach.

A layout costs host work only, and those of recent shapes are cached.
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
"""Rows of one batch on a CPU.

Few enough that intermediate results stay in cache, and fewer than those for which the C library
takes fresh pages from the system every time.
"""

MIN_WINDOW_BLOCK = 32
"""Queries of one block of a sliding window, at least: about half a window where that is more."""


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
    filled: Tensor | None  # slots that are not padding, in order; None if nothing is padded
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
        elif self.filled is None:
            out.index_copy_(0, self.rows, flat)
        else:
            out.index_copy_(0, self.rows[self.filled], flat.index_select(0, self.filled))

    def covers(self, num_rows: int) -> bool:
        return self.contiguous == slice(0, num_rows)


def gather_each(batches: Sequence[SpanBatch], x: Tensor) -> Iterator[Tensor]:
    """Rows of x by slot, one batch after the other.

    Where x requires a gradient, all batches are gathered at once: the gradient of every single
    gather would be as large as x.
    """
    if len(batches) < 2 or not _needs_gradient(x):
        yield from (batch.gather(x) for batch in batches)
        return
    slots = x.index_select(0, torch.cat([batch.rows for batch in batches]))
    parts = torch.split(slots, [batch.rows.numel() for batch in batches])
    for batch, part in zip(batches, parts, strict=True):
        yield part.view(batch.count, batch.width, *x.shape[1:])


def scatter_each(
    batches: Sequence[SpanBatch],
    values: Iterable[Tensor],
    like: Tensor,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """The batches' slots [n, width, ...] as packed rows; together the batches cover all rows.

    Without a gradient they are like `like`, in `dtype` where one is given.
    """
    found = iter(values)
    first = next(found, None)
    if first is None or len(batches) < 2 or not _needs_gradient(first):
        out = torch.empty_like(like, dtype=dtype)
        for batch, value in zip(batches, itertools.chain([first], found), strict=False):
            assert value is not None, "there is a value for every batch"
            batch.scatter(value, out)
        return out
    slots = torch.cat([value.flatten(0, 1) for value in (first, *found)])
    return slots.index_select(0, _slot_of_each_row(batches, len(like)))


def _slot_of_each_row(batches: Sequence[SpanBatch], num_rows: int) -> Tensor:
    rows = torch.cat([batch.rows for batch in batches])
    filled = torch.cat(
        [
            torch.ones_like(batch.rows, dtype=torch.bool)
            if batch.padding is None
            else ~batch.padding.flatten()
            for batch in batches
        ]
    )
    slots = torch.arange(len(rows), device=rows.device)
    return slots.new_empty(num_rows).index_copy_(0, rows[filled], slots[filled])


def _needs_gradient(x: Tensor) -> bool:
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
    longest = max((end - start for start, end in itertools.pairwise(bounds)), default=0)
    groups = _group(_cut(bounds, block_size or max(longest, 1)), int, device)
    return tuple(
        BlockBatch(_batch(group, width, device), _sink_keys(group, bounds, sinks, device))
        for width, group in groups
    )


def _cut(bounds: tuple[int, ...], size: int) -> list[RowSpan]:
    return [
        RowSpan(start, min(start + size, end), sequence)
        for sequence, (first, end) in enumerate(itertools.pairwise(bounds))
        for start in range(first, end, size)
    ]


def _group(
    spans: list[RowSpan], width_of: Callable[[int], int], device: torch.device
) -> list[tuple[int, list[RowSpan]]]:
    """Spans by padded width, widest first: the last short piece of a sequence comes last."""
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
        filled=(~padding).flatten().nonzero().flatten().to(device) if padded else None,
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


@dataclass(frozen=True)
class WindowBatch:
    """Some blocks of queries, and the keys beside each."""

    queries: Tensor  # [n, B] packed rows; beyond a sequence's end its last row again
    filled: Tensor  # [m] the slots of `queries` that are no such repetition
    keys: Tensor  # [n, K] packed rows; outside the sequence any row, hidden by the mask
    visible: Tensor  # [n, 1, B, K]


@lru_cache(maxsize=16)
def window_batches(
    bounds: tuple[int, ...], half_window: int, device: torch.device
) -> tuple[WindowBatch, ...]:
    """Every sequence cut into blocks of queries, some thousand rows a batch.

    The work is linear in the sequence, and nothing is larger than a block by its keys.
    """
    block = max(half_window, MIN_WINDOW_BLOCK)
    blocks = [
        (start, first, end)
        for first, end in itertools.pairwise(bounds)
        for start in range(first, end, block)
    ]
    size = max(1, CPU_BATCH_ROWS // block)
    parts = (blocks[at : at + size] for at in range(0, len(blocks), size))
    return tuple(_window_batch(part, block, half_window, device) for part in parts)


@torch.inference_mode(False)  # the tables outlive the caller's mode and may serve autograd later
def _window_batch(
    blocks: list[tuple[int, int, int]], block: int, half_window: int, device: torch.device
) -> WindowBatch:
    start, first, end = torch.tensor(blocks).unsqueeze(1).unbind(2)  # each [n, 1]
    slots = start + torch.arange(block)
    queries = torch.minimum(slots, end - 1)
    reach = start - half_window + torch.arange(block + 2 * half_window)
    inside = (reach >= first) & (reach < end)
    near = (reach[:, None, :] - queries[:, :, None]).abs() <= half_window
    return WindowBatch(
        queries=queries.to(device),
        filled=(slots < end).flatten().nonzero().flatten().to(device),
        keys=torch.where(inside, reach, first).to(device),
        visible=(near & inside[:, None, :]).unsqueeze(1).to(device),
    )
