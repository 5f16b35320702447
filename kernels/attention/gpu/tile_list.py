"""The tiles of a batch, listed once: which sequence each belongs to, and where that lies.

Without a list every program searches the batch's bounds for its sequence.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from kernels.attention.gpu.tiles import Span
from kernels.attention.packed_sequences import PackedSequences


def tile_list(packed: PackedSequences | None, span: Span, short: int) -> Tensor | None:
    """int32 [tiles, 4] of sequences of more than `short` tokens, kept with the bounds.

    Of each tile: its sequence, that one's first packed row and length, and the tile within it.
    None where the host does not know them, and for a single sequence, which needs no list.
    """
    if packed is None or packed.bounds is None or packed.count < 2:
        return None
    key = tile_list, span, short
    if key not in packed.kept:
        packed.kept[key] = _listed(packed.bounds, span, short, packed.cu_seqlens.device)
    listed: Tensor = packed.kept[key]
    return listed


@torch.inference_mode(False)  # it outlives the caller's mode
def _listed(bounds: tuple[int, ...], span: Span, short: int, device: torch.device) -> Tensor:
    ends = np.array(bounds, dtype=np.int64)
    lengths = np.diff(ends)
    counts = lengths // span.tokens * span.tiles + -(-(lengths % span.tokens) // span.rows)
    counts[lengths <= short] = 0
    sequences = np.arange(len(lengths)).repeat(counts)
    first_tiles = (counts.cumsum() - counts)[sequences]
    tiles = np.arange(len(sequences)) - first_tiles
    fields = sequences, ends[sequences], lengths[sequences], tiles
    return torch.from_numpy(np.stack(fields, 1).astype(np.int32)).to(device)
