"""Units of work on the device: prepared texts in, pooled vectors out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import isfinite

import numpy as np
import torch

from engine.errors import DeviceFailure
from engine.model.embedding_model import EmbeddingModel
from engine.model.pooling import pool
from engine.prepare import Prepared
from engine.types import EmbedOptions, Vector


@torch.inference_mode()
def run_batch(model: EmbeddingModel, texts: Sequence[Prepared]) -> list[Vector]:
    """Pack the texts, encode them in one pass, pool their spans: one array [spans, dim] a text.

    A model that does not pool answers with the token states of each text's first span. Texts are
    packed by length, so that attention finds those it can batch side by side and copies none.
    """
    order = sorted(range(len(texts)), key=lambda at: texts[at].num_embedded)
    found = dict(zip(order, _run_packed(model, [texts[at] for at in order]), strict=True))
    return [found[at] for at in range(len(texts))]


def _run_packed(model: EmbeddingModel, texts: Sequence[Prepared]) -> list[Vector]:
    ids, bounds = pack(texts, model.encoder.device)
    states = model.encoder(ids, bounds)
    if model.checkpoint.pooling == "none":
        return [to_host(states[start:end]) for start, end in pairwise(bounds)]
    spans = [
        span
        for start, text in zip(bounds, texts, strict=False)
        for span in model.pools(text.spans, text.num_embedded, at=start)
    ]
    pooled = to_host(pool(states, spans, model.checkpoint.pooling))
    ends = list(accumulate(len(text.spans) for text in texts))
    return [pooled[start:end] for start, end in pairwise([0, *ends])]


def pack(texts: Sequence[Prepared], device: torch.device) -> tuple[torch.Tensor, list[int]]:
    """All ids in one row, and where each text begins and ends."""
    rows = texts[0].ids if len(texts) == 1 else np.concatenate([text.ids for text in texts])
    ids = torch.from_numpy(rows.astype(np.int64))
    bounds = [0, *accumulate(text.num_embedded for text in texts)]
    return ids.to(device), bounds


def finish(vectors: Vector, options: EmbedOptions) -> Vector:
    """Truncated to the dimensions asked for, then normalised: rows of [n, dim]."""
    lengths = _lengths(vectors)
    if not all(map(isfinite, lengths)):
        raise DeviceFailure("the model gave numbers that are not finite", code="non_finite_output")
    if options.dimensions is not None:
        vectors = vectors[:, : options.dimensions]
    if not options.normalize:
        return np.ascontiguousarray(vectors)
    if options.dimensions is not None:
        lengths = _lengths(vectors)
    divisors = np.array([length or 1.0 for length in lengths], dtype=np.float32)
    normalised: Vector = vectors / divisors[:, None]
    return normalised


def _lengths(vectors: Vector) -> list[float]:
    """Of each row, not finite where the row is not. A query waits for every array operation, so
    what follows on these few numbers does without."""
    squares: list[float] = np.einsum("nd,nd->n", vectors, vectors).tolist()
    return [square**0.5 for square in squares]


def partly_alone(late: Vector, alone: Vector, share: float) -> Vector:
    """Passages read within their document, turned by this share to where they point when they are
    read alone: rows of [n, dim]."""
    lengths = np.linalg.norm(alone, axis=1, keepdims=True)
    directions = alone / np.where(lengths == 0, 1, lengths)
    within = np.linalg.norm(late, axis=1, keepdims=True)
    mixed: Vector = (1 - share) * late + share * within * directions
    return mixed


def with_opening(vectors: Vector, opening: Vector, share: float) -> Vector:
    """Each with the direction of its document's opening [dim] added, by a share of its length."""
    length = float(np.linalg.norm(opening)) or 1.0
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    moved: Vector = vectors + lengths * (share / length * opening)
    return moved


def to_host(tensor: torch.Tensor) -> Vector:
    vectors: Vector = tensor.float().cpu().numpy()
    return vectors
