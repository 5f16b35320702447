"""A text of random tokens, and what an encoder makes of it in one pass or by tiles."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from engine.model.encoder import Encoder
from engine.model.tiled_pass import TiledPass


def some_ids(length: int, vocabulary: int = 150) -> NDArray[np.int32]:
    ids = np.random.default_rng(length).integers(5, vocabulary, length)
    return ids.astype(np.int32)


@torch.inference_mode()
def at_once(encoder: Encoder, ids: NDArray[np.int32]) -> torch.Tensor:
    return encoder(torch.from_numpy(ids.astype(np.int64)), [0, len(ids)])


def by_tiles(encoder: Encoder, ids: NDArray[np.int32], *, keep: bool = True) -> torch.Tensor:
    tiles = TiledPass(encoder, ids, keep_projections=keep)
    while not tiles.is_done:
        tiles.visit()
    return tiles.states
