"""Batches in runs of sequences that attend alike.

The block size depends on the length of a sequence. So kinds of attention with blocks split a batch
into runs of neighbouring sequences that share a block size, and that are either all one block or
all longer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import groupby, pairwise
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from engine.checkpoint.block_size import LongBlock, beyond_a_block, block_of
from engine.model.lln_parameters import LLNParameters
from kernels.attention import PackedSequences


class BlockRun(NamedTuple):
    """Neighbouring sequences of a batch that are attended to alike."""

    rows: slice
    packed: PackedSequences
    block_size: int
    is_whole: bool  # each sequence is one block


AttendRun: TypeAlias = Callable[[Tensor, Tensor, Tensor, BlockRun], Tensor]


def by_run(
    q: Tensor, k: Tensor, v: Tensor, packed: PackedSequences, attend: AttendRun, lln: LLNParameters
) -> Tensor:
    """Attends to each run of a batch on its own."""
    usual = lln.block_size
    if q.shape[0] <= usual:  # one run for certain: a short query need not wait for the search
        return attend(q, k, v, BlockRun(slice(None), packed, usual, True))
    runs = _runs_of(packed, usual, lln.long_block, q.device)
    if len(runs) == 1:
        return attend(q, k, v, runs[0]._replace(packed=packed))
    return torch.cat([attend(q[run.rows], k[run.rows], v[run.rows], run) for run in runs])


def _runs_of(
    packed: PackedSequences, usual: int, long: LongBlock | None, device: torch.device
) -> tuple[BlockRun, ...]:
    """Keeps the runs with the bounds: a look-up by thousands of numbers would slow every layer."""
    key = block_runs, usual, long
    if key not in packed.kept:
        packed.kept[key] = block_runs(packed.host_bounds(), usual, long, device)
    runs: tuple[BlockRun, ...] = packed.kept[key]
    return runs


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # cached tensors may be used under autograd later
def block_runs(
    bounds: tuple[int, ...], usual: int, long: LongBlock | None, device: torch.device
) -> tuple[BlockRun, ...]:
    """The runs of a batch. A batch sorted by length has three at most."""

    def kind(pair: tuple[int, int]) -> tuple[int, bool]:
        length = pair[1] - pair[0]
        size = block_of(length, usual, long)
        return size, length <= size

    runs = []
    for (size, is_whole), pairs in groupby(pairwise(bounds), kind):
        run = list(pairs)
        start, end = run[0][0], run[-1][1]
        inside = [0, *(last - start for _, last in run)]
        packed = PackedSequences.of(inside, device)
        runs.append(BlockRun(slice(start, end), packed, size, is_whole))
    return tuple(runs)


def beyond_blocks_in(run: BlockRun, like: Tensor) -> Tensor:
    """`beyond_blocks` of a run, kept for the batch's other layers: each copy makes the host wait
    for a GPU."""
    key, kept = (beyond_blocks, run.block_size, like.device, like.dtype), run.packed.kept
    if key not in kept:
        kept[key] = beyond_blocks(run.packed.host_bounds(), run.block_size, like.device, like.dtype)
    beyond: Tensor = kept[key]
    return beyond


@lru_cache(maxsize=64)  # every tile of a long text asks for the same
@torch.inference_mode(False)  # kept tensors may be used under autograd later
def beyond_blocks(
    bounds: tuple[int, ...], block_size: int, device: torch.device, dtype: torch.dtype
) -> Tensor:
    """`beyond_a_block` of every sequence [B]."""
    parts = [beyond_a_block(end - start, block_size) for start, end in pairwise(bounds)]
    return torch.tensor(parts, dtype=torch.float64).to(device, dtype)
