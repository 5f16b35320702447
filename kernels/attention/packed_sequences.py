"""Where each sequence begins and ends in packed rows, checked once and kept for all layers."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from operator import sub
from typing import Any, Self, TypeAlias

import torch
from torch import Tensor

from kernels.attention.arguments import ArgumentError


@dataclass(frozen=True)
class PackedSequences:
    cu_seqlens: Tensor  # int32 [B + 1], on the device of the rows
    bounds: tuple[int, ...] | None  # the same on the host; None where reading it would synchronise

    @classmethod
    def of(cls, bounds: Sequence[int], device: torch.device) -> Self:
        """From bounds on the host: one copy to a GPU, however many layers attend."""
        checked = tuple(bounds)
        if not checked or checked[0]:
            _check_bounds(checked)
        # By way of an array, which torch reads at once: number by number takes three times as long.
        on_host = torch.frombuffer(array("i", checked), dtype=torch.int32)
        packed = cls(on_host.to(device), checked)
        if packed._lengths[0] < 0:
            _check_bounds(checked)
        return packed

    @property
    def count(self) -> int:
        return self.cu_seqlens.numel() - 1

    @property
    def longest(self) -> int | None:
        """The most tokens of a sequence. None where the host does not know, or while tracing."""
        if self.bounds is None or torch.compiler.is_compiling():
            return None
        return self._lengths[1]

    @property
    def shortest(self) -> int | None:
        """The fewest, likewise."""
        if self.bounds is None or torch.compiler.is_compiling():
            return None
        return self._lengths[0]

    @cached_property
    def _lengths(self) -> tuple[int, int]:
        """Fewest and most. Kept: every layer asks, and thousands of sequences take a while."""
        bounds = self.host_bounds()
        lengths = list(map(sub, bounds[1:], bounds))
        return min(lengths, default=0), max(lengths, default=0)

    @cached_property
    def kept(self) -> dict[Any, Any]:
        """What callers have found out about these bounds, for the other layers of a batch."""
        return {}

    def host_bounds(self) -> tuple[int, ...]:
        if self.bounds is not None:
            return self.bounds
        return tuple(self.cu_seqlens.tolist())


Bounds: TypeAlias = Tensor | PackedSequences
"""cu_seqlens as callers give them: int32 (B + 1,), or checked before as PackedSequences."""


def check_cu_seqlens(cu_seqlens: Bounds | None, rows: Tensor) -> PackedSequences:
    """Bounds that start at 0, never fall and end at T; None is one sequence."""
    num_rows = rows.shape[0]
    if isinstance(cu_seqlens, PackedSequences):
        return _checked_for(num_rows, cu_seqlens)
    if cu_seqlens is None:
        if torch.compiler.is_compiling() or _is_recorded(rows):
            return PackedSequences(_ends(num_rows, rows.device), (0, num_rows))
        return _one_sequence(num_rows, rows.device, _stream(rows.device))
    if cu_seqlens.dtype != torch.int32 or cu_seqlens.dim() != 1 or cu_seqlens.numel() < 1:
        raise ArgumentError(
            "cu_seqlens must be int32 of shape (B + 1,), "
            f"got {cu_seqlens.dtype} {tuple(cu_seqlens.shape)}"
        )
    if cu_seqlens.device.type != "cpu" or torch.compiler.is_compiling():
        # Reading the values would make the host wait for the device and break graph capture.
        return PackedSequences(cu_seqlens.to(rows.device).contiguous(), None)
    bounds = tuple(cu_seqlens.tolist())
    _check_bounds(bounds)
    return _checked_for(num_rows, PackedSequences(cu_seqlens.to(rows.device).contiguous(), bounds))


def _checked_for(num_rows: int, packed: PackedSequences) -> PackedSequences:
    if packed.bounds is not None and packed.bounds[-1] != num_rows:
        raise ArgumentError(f"cu_seqlens must end at T = {num_rows}, got {packed.bounds[-1]}")
    return packed


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # it outlives the caller's mode and may serve autograd later
def _one_sequence(num_rows: int, device: torch.device, stream: int) -> PackedSequences:
    """Kept, because a GPU makes it in two launches, and every tile and layer of a long text asks.

    For each stream apart: what one stream makes is not there yet for another.
    """
    return PackedSequences(_ends(num_rows, device), (0, num_rows))


def _ends(num_rows: int, device: torch.device) -> Tensor:
    """Made where it is used: copying it there would break graph capture."""
    return torch.arange(2, dtype=torch.int32, device=device) * num_rows


def _is_recorded(rows: Tensor) -> bool:
    """Whether what is made now is of no use later.

    A CUDA graph makes it when it is replayed; a mode of torch may make something else of it.
    """
    if torch._C._len_torch_dispatch_stack():
        return True
    return rows.is_cuda and torch.cuda.is_current_stream_capturing()


def _stream(device: torch.device) -> int:
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0


def _check_bounds(bounds: tuple[int, ...]) -> None:
    if not bounds or bounds[0] != 0:
        raise ArgumentError(f"cu_seqlens must start at 0, got {bounds[0] if bounds else 'none'}")
    for index, (start, end) in enumerate(itertools.pairwise(bounds)):
        if end < start:
            raise ArgumentError(f"cu_seqlens falls from {start} to {end} at {index}")
