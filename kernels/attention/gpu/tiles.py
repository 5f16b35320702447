"""Tile sizes: chosen by device, head size, dtype and block, never by length or batch.

So a sequence is always summed in the same order, and serving compiles and tunes nothing anew as
lengths vary. The functions below hold the defaults. Where tiles.json has a measured choice for the
family of devices, it replaces them; `python -m kernels.tune` measures and writes it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TypeAlias, TypeVar

import torch

TABLE = Path(__file__).with_name("tiles.json")
# Not by generation: an sm_86 has little more than half the shared memory of an sm_80.
FAMILIES = {(8, 0): "ampere", (8, 6): "ampere, small", (8, 9): "ada", (9, 0): "hopper"}

Table: TypeAlias = dict[str, dict[str, dict[str, int | None]]]
AnyTile = TypeVar("AnyTile")


@dataclass(frozen=True)
class StateTile:
    """How one program of the state pass works."""

    tokens: int  # per step
    channels: int
    piece: int  # tokens of a sequence that one program sums
    num_warps: int
    num_stages: int
    max_registers: int | None = (
        None  # of a thread, where the compiler takes so many that warps wait
    )


@dataclass(frozen=True)
class MergeTile:
    """How one program that merges pieces works."""

    channels: int
    num_warps: int = 4
    num_stages: int = 8  # a step is one load, and few programs have all pieces to read


@dataclass(frozen=True)
class OutputTile:
    """How one program of the output pass works."""

    queries: int
    keys: int  # per step
    channels: int  # per step
    sinks: int  # per step
    num_warps: int
    num_stages: int
    max_registers: int | None = None  # of a thread, as for the state


@dataclass(frozen=True)
class SoftmaxTile:
    """How one program of softmax over whole sequences works."""

    queries: int
    keys: int  # per step
    num_warps: int
    num_stages: int


@dataclass(frozen=True)
class StateGradientTile:
    """How one program of the backward's first pass works."""

    tokens: int  # per step
    channels: int
    columns: int  # of a D x D product, per step
    piece: int  # tokens of a sequence that one program sums
    num_warps: int
    num_stages: int


@dataclass(frozen=True)
class RowsGradientTile:
    """How one program of the backward's second pass works."""

    rows: int
    keys: int  # per step
    channels: int  # per step
    columns: int  # of a D x D product, per step
    sinks: int  # per step
    num_warps: int
    num_stages: int


@dataclass(frozen=True)
class Span:
    """How the tokens of a sequence become query tiles that share their keys."""

    tokens: int  # whole blocks: as many as fill one tile, or a single one of several tiles
    tiles: int
    rows: int  # of one tile

    @property
    def is_one_tile(self) -> bool:
        return self.tiles == 1

    @property
    def cut(self) -> tuple[int, int, int]:
        """As `num_slots` takes it."""
        return self.tokens, self.tiles, self.rows


WHOLE = 1 << 30
"""The size of a block that holds any sequence."""

SHORT_TOKENS = 256
"""Sequences of at most this many tokens take one launch: one program sums and reads the state."""


TALL_ROWS = 128
"""Rows of a tile of the output pass, in blocks of at least as many tokens, small heads, 16 bits."""


def short_tokens(head_dim: int) -> int:
    """-1, so no sequence is short, where a program's registers would not hold state and queries."""
    return SHORT_TOKENS if padded_head_dim(head_dim) <= 64 else -1


@cache
def table() -> Table:
    """Measured tile sizes, by family of devices and by purpose."""
    chosen: Table = json.loads(TABLE.read_text(encoding="utf-8"))["tiles"]
    return chosen


@cache
def family_of(device: torch.device) -> str | None:
    """The device's name in the table; None for a CPU and for GPUs that the table does not know."""
    if device.type != "cuda":
        return None
    return FAMILIES.get(torch.cuda.get_device_capability(device))


def purpose(
    tile: str, head_dim: int, dtype: torch.dtype, *, weight: bool, block_size: int | None = None
) -> str:
    """The name of a choice in the table."""
    mapped = ", mapped" if weight else ""
    block = "" if block_size is None else f", blocks of {block_size}"
    if block_size == WHOLE:
        block = ", whole sequences"
    width = padded_head_dim(head_dim)
    return f"{tile}, D {width}, {str(dtype).removeprefix('torch.')}{block}{mapped}"


def _measured(tile: AnyTile, family: str | None, what_for: str) -> AnyTile:
    numbers = table().get(family, {}).get(what_for, {}) if family else {}
    return replace(tile, **numbers)  # type: ignore[type-var]


def padded_head_dim(head_dim: int) -> int:
    """Blocks are powers of two; the rest is masked."""
    return max(16, 1 << (head_dim - 1).bit_length())


def query_span(block_size: int, rows: int) -> Span:
    if block_size <= rows:
        tokens = rows // block_size * block_size
        return Span(tokens, tiles=1, rows=tokens)
    tiles = -(-block_size // rows)
    return Span(block_size, tiles, rows=-(-block_size // tiles))


def piece_tokens(head_dim: int) -> int:
    """A piece costs a state written and read back: an eighth of the keys and values it sums.

    Fewer tokens would keep more processors busy with short documents, and take long ones longer.
    """
    return 16 * max(32, padded_head_dim(head_dim))


def state_tile(
    head_dim: int,
    dtype: torch.dtype,
    *,
    weight: bool,
    family: str | None = None,
) -> StateTile:
    width = padded_head_dim(head_dim)
    single = dtype == torch.float32
    channels = min(width, 64 if single or weight else 128)
    if width == 256:
        channels = 32 if single or weight else 64
    narrow = not single and width <= 128
    tile = StateTile(
        tokens=32 if not narrow or width == 128 else 64,
        channels=channels,
        piece=piece_tokens(head_dim),
        # Of small heads, two warps took two thirds of the time of four, on an H200.
        num_warps=2 if narrow and width <= 32 else 4 if narrow or width <= 64 else 8,
        num_stages=3 if narrow else 2,
        # Three programs a processor, at two instructions in a hundred more and nothing spilled.
        max_registers=168 if width == 64 and not single and not weight else None,
    )
    return _measured(tile, family, purpose("state", head_dim, dtype, weight=weight))


def merge_tile(head_dim: int) -> MergeTile:
    return MergeTile(channels=max(1, 1024 // padded_head_dim(head_dim)))


def output_tile(
    head_dim: int,
    dtype: torch.dtype,
    *,
    weight: bool,
    block_size: int | None = None,
    family: str | None = None,
    tall: bool = True,  # as many rows as a large block is worth
) -> OutputTile:
    tile = (
        _single_output_tile(head_dim)
        if dtype == torch.float32
        else _narrow_output_tile(head_dim, weight)
    )
    if padded_head_dim(head_dim) == 256 and block_size and block_size <= tile.queries:
        tile = replace(tile, num_stages=1)  # its registers hold no more than one tile of keys
    if tall and dtype != torch.float32 and (block_size or 0) >= TALL_ROWS:
        tile = _large_block_tile(tile, head_dim, block_size or 0)
    return _measured(
        tile, family, purpose("output", head_dim, dtype, weight=weight, block_size=block_size)
    )


def _single_output_tile(head_dim: int) -> OutputTile:
    width = padded_head_dim(head_dim)
    rows = 16 if width == 256 else 32
    return OutputTile(
        queries=rows,
        keys=rows,
        channels=min(width, 32 if width == 256 else 64),
        sinks=16,
        num_warps=4 if width <= 32 else 8,
        num_stages=2,
    )


def _narrow_output_tile(head_dim: int, weight: bool) -> OutputTile:
    width = padded_head_dim(head_dim)
    return OutputTile(
        queries=64,
        keys=32 if width == 256 or (width == 128 and not weight) else 64,
        channels=min(width, 32 if width == 256 else 64),
        sinks=16,
        # Eight warps would share 64 rows by computing every weight twice.
        num_warps=4 if width <= (64 if weight else 128) else 8,
        num_stages=2,
    )


def _large_block_tile(tile: OutputTile, head_dim: int, block_size: int) -> OutputTile:
    width = padded_head_dim(head_dim)
    if width > 32:
        deeper = {64: 4, 128: 3}.get(width, tile.num_stages)
        return replace(tile, keys=32, num_stages=deeper)
    # Twice the rows read a block's keys and values half as often; more would fill a processor.
    if block_size <= TALL_ROWS:  # in one step, of which each of four warps would hold half
        return replace(tile, queries=TALL_ROWS, num_warps=8)
    # Three programs a processor.
    return replace(tile, queries=TALL_ROWS, keys=32, num_warps=4, num_stages=4, max_registers=168)


def softmax_tile(head_dim: int, dtype: torch.dtype, *, family: str | None = None) -> SoftmaxTile:
    width = padded_head_dim(head_dim)
    if dtype == torch.float32:
        tile = SoftmaxTile(
            queries=32 if width <= 64 else 16,
            keys=16 if width == 256 else 32,
            num_warps=4 if width <= 32 else 8,
            num_stages=2,
        )
    else:
        tile = SoftmaxTile(
            queries=64 if width == 256 else 128,
            keys=32 if width == 256 else 64,
            num_warps=4 if width <= 64 else 8,
            num_stages=2,
        )
    return _measured(tile, family, purpose("softmax", head_dim, dtype, weight=False))


def state_gradient_tile(
    head_dim: int,
    dtype: torch.dtype,
    *,
    weight: bool,
    family: str | None = None,
) -> StateGradientTile:
    width = padded_head_dim(head_dim)
    single = dtype == torch.float32
    tile = StateGradientTile(
        tokens=16 if width == 256 else 32 if single or weight or width == 128 else 64,
        channels=min(width, 32 if width == 256 else 64 if single or weight else 128),
        columns=min(width, 32 if single else 64),
        piece=piece_tokens(head_dim),
        num_warps=4 if width <= 64 and not weight else 8,
        num_stages=2,
    )
    return _measured(tile, family, purpose("state gradient", head_dim, dtype, weight=weight))


def rows_gradient_tile(
    head_dim: int,
    dtype: torch.dtype,
    *,
    weight: bool,
    block_size: int | None = None,
    family: str | None = None,
) -> RowsGradientTile:
    width = padded_head_dim(head_dim)
    single = dtype == torch.float32
    # Float32 operands are kept twice, as the parts of three tf32 products.
    narrow = width == 256 or (single and width == 128)
    # With maps, small heads multiply without descriptors: ptxas got theirs wrong.
    two_warps = weight and width <= 32 and not single
    rows = 16 if narrow else 32 if single or width == 128 or two_warps else 64
    tile = RowsGradientTile(
        rows=rows,
        # Fewer keys where registers are short: ptxas has read descriptors that nothing had written.
        keys=rows if width <= 32 else min(rows, 32),
        channels=16 if single and width == 256 else min(width, 32),
        columns=16 if single and width == 256 else min(width, 32 if single else 64),
        sinks=16,
        # Eight warps would share 64 rows by computing every weight twice.
        num_warps=2 if two_warps else 4 if width <= 64 and not single else 8,
        num_stages=1,
    )
    return _measured(
        tile,
        family,
        purpose("rows gradient", head_dim, dtype, weight=weight, block_size=block_size),
    )
