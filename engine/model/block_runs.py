"""Packed sequences in runs that are attended to alike: their blocks have one size, and either each
of them is one block or none is."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import groupby, pairwise
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from engine.block_size import LongBlock, block_of
from kernels.attention import PackedSequences


class BlockRun(NamedTuple):
    rows: slice
    packed: PackedSequences
    block_size: int
    is_whole: bool  # each sequence is one block


AttendRun: TypeAlias = Callable[[Tensor, Tensor, Tensor, BlockRun], Tensor]


def attend_by_run(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    packed: PackedSequences,
    *,
    usual: int,
    long: LongBlock | None,
    attend: AttendRun,
) -> Tensor:
    if q.shape[0] <= usual:  # at once, since a query waits for every look at its batch
        return attend(q, k, v, BlockRun(slice(None), packed, usual, True))
    runs = block_runs(packed.host_bounds(), usual, long, q.device)
    if len(runs) == 1:
        return attend(q, k, v, runs[0]._replace(packed=packed))
    return torch.cat([attend(q[run.rows], k[run.rows], v[run.rows], run) for run in runs])


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # what is kept outlives the caller's mode and may serve autograd later
def block_runs(
    bounds: tuple[int, ...], usual: int, long: LongBlock | None, device: torch.device
) -> tuple[BlockRun, ...]:
    """Neighbours that are alike together: a batch in order of length has three runs at most."""

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
