"""Vectors of many texts, for training and evaluation: of whole texts, of windows, or late.

Late vectors are pooled from spans of states that have seen the whole text (late chunking).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.checkpoint.folder import Pooling
from engine.errors import InvalidInput
from engine.model.embedding_model import EmbeddingModel
from engine.model.encoder import Encoder
from engine.model.linked_pass import LinkedPass, longest_passage
from engine.model.pooling import PooledSpan, pool, whole_texts
from engine.model.tiled_pass import TiledPass, can_tile
from engine.text.linked_passages import linked_rows
from engine.text.tokenizer import TextTokenizer
from engine.training.token_corpus import TokenRange
from engine.types import Ids, Span

Vectors: TypeAlias = NDArray[np.float32]

_BATCH_TOKENS = 16_384


def pooling_of(model: EmbeddingModel) -> Pooling:
    """How the model pools its token states; an error if it does not."""
    pooling = model.checkpoint.pooling
    if pooling == "none":
        raise InvalidInput(
            f"{model.name} does not pool: it gives a state for every token, and no vector to "
            "calibrate, train or evaluate by",
            code="no_pooling",
            param="model",
            actual=model.name,
        )
    return pooling


def teacher_window(teacher: EmbeddingModel, window: int) -> int:
    """How many tokens the teacher reads at once where a student is compared with it.

    A teacher without a position table reads all that it was trained to read as well as short texts.
    """
    if teacher.encoder.weights.positions is None:
        return max(window, teacher.info.position_table)
    return window


@torch.inference_mode()
def vectors_of(model: EmbeddingModel, texts: Sequence[NDArray[Any]]) -> Vectors:
    """Unit vectors of texts; `texts` include special tokens."""
    encoder, pooling = model.encoder, pooling_of(model)
    found = np.empty((len(texts), encoder.weights.width), np.float32)
    for chosen in _batches([len(text) for text in texts]):
        bounds = [0, *np.cumsum([len(texts[at]) for at in chosen]).tolist()]
        ids = np.concatenate([texts[at] for at in chosen]).astype(np.int64)
        spans = whole_texts(bounds, model.pooling_slope_of)
        found[chosen] = pool(_states(encoder, ids, bounds), spans, pooling).cpu()
    return unit(found)


def window_means(teacher: EmbeddingModel, texts: Sequence[Ids], window: int) -> Vectors:
    """The mean vector of each text's windows."""
    parts, owners = window_vectors(teacher, texts, window)
    return means_of(parts, owners)


def window_vectors(
    model: EmbeddingModel, texts: Sequence[Ids], window: int
) -> tuple[Vectors, list[int]]:
    """A vector for each window of each text, and the text of each window.

    Every window is read between special tokens of its own.
    """
    tokenizer = model.tokenizer
    parts: list[Ids] = []
    owners: list[int] = []
    for owner, text in enumerate(texts):
        for span in window_spans(len(text), tokenizer, window):
            parts.append(tokenizer.between_special(text[slice(*span)]))
            owners.append(owner)
    return vectors_of(model, parts), owners


def window_spans(length: int, tokenizer: TextTokenizer, window: int) -> list[TokenRange]:
    """Where the windows are in a text of `length` tokens.

    They cover what is between the text's special tokens, and leave room for their own.
    """
    first, end = tokenizer.num_prefix, length - tokenizer.num_suffix
    size = window - tokenizer.num_special
    return [(at, min(at + size, end)) for at in range(first, max(end, first + 1), size)]


class ReadWhole(NamedTuple):
    """The vectors of one pass over each text."""

    whole: Vectors  # [texts, W]
    late: Vectors  # [spans of all texts, W]


@torch.inference_mode()
def read_whole(
    model: EmbeddingModel, texts: Sequence[Ids], spans: Sequence[Sequence[TokenRange]]
) -> ReadWhole:
    """Vectors of each text and of its spans, pooled from the states of the whole text."""
    pooling = pooling_of(model)
    wholes, parts = [], []
    for text, inside in zip(texts, spans, strict=True):
        states = _states(model.encoder, text, [0, len(text)])
        pools = model.pools([(0, len(text)), *inside], len(text))
        pooled = pool(states, pools, pooling).cpu().numpy()
        wholes.append(pooled[:1])
        parts.append(pooled[1:])
    return ReadWhole(unit(np.concatenate(wholes)), unit(np.concatenate(parts)))


@torch.inference_mode()
def read_linked(
    model: EmbeddingModel, texts: Sequence[Ids], spans: Sequence[Sequence[TokenRange]]
) -> Vectors:
    """Vectors of each text's spans, linked by LLN: [spans of all texts, W]. A model that cannot
    link them reads them alone."""
    tokenizer, found = model.tokenizer, []
    for text, inside in zip(texts, spans, strict=True):
        content = Span(tokenizer.num_prefix, len(text) - tokenizer.num_suffix)
        passages = [Span(max(start, content.start), end) for start, end in inside]
        if not passages:
            continue
        if not can_tile(model.encoder):
            alone = [tokenizer.between_special(text[slice(*span)]) for span in passages]
            found.append(vectors_of(model, alone))
            continue
        rows = linked_rows(
            *(text, passages, content, tokenizer),
            longest=longest_passage(model.encoder),
            prompt=text[:0],
        )
        linked = LinkedPass(
            *(model.encoder, rows.ids, rows.bounds), around=rows.around, keep_projections=True
        )
        while not linked.is_done:
            linked.visit()
        pools = [PooledSpan(*span) for span in rows.passages]
        found.append(pool(linked.states, pools, pooling_of(model)).cpu().numpy())
    return unit(np.concatenate(found)) if found else _no_vectors(model)


def _no_vectors(model: EmbeddingModel) -> Vectors:
    return np.empty((0, model.encoder.weights.width), np.float32)


def _states(encoder: Encoder, ids: NDArray[Any], bounds: Sequence[int]) -> Tensor:
    """States of packed texts; a single very long text is read in tiles if its attention allows."""
    if len(bounds) == 2 and len(ids) > _BATCH_TOKENS and can_tile(encoder):
        tiled = TiledPass(encoder, ids.astype(np.int32), keep_projections=False)
        while not tiled.is_done:
            tiled.visit()
        return tiled.states
    return encoder(torch.from_numpy(ids.astype(np.int64)).to(encoder.device), bounds)


def _batches(lengths: Sequence[int]) -> list[list[int]]:
    """Indices of texts in batches of at most _BATCH_TOKENS; a longer text is a batch alone."""
    batches: list[list[int]] = []
    room = 0
    for at, length in enumerate(lengths):
        if not batches or length > room:
            batches.append([])
            room = _BATCH_TOKENS
        batches[-1].append(at)
        room -= length
    return batches


def ids_of(texts: Sequence[str], tokenizer: TextTokenizer) -> list[Ids]:
    return [encoded.ids for encoded in tokenizer.encode_batch(list(texts))]


def first_of(parts: Vectors, owners: Sequence[int]) -> Vectors:
    """The vector of each text's first part."""
    first: Vectors = parts[np.flatnonzero(np.diff(np.asarray(owners), prepend=-1))]
    return first


def means_of(parts: Vectors, owners: Sequence[int]) -> Vectors:
    """Mean unit vector of each text's parts. Short parts count as much as long ones, unlike in
    engine.benchmarks.quality, where the mean is weighted by tokens."""
    starts = np.flatnonzero(np.diff(np.asarray(owners), prepend=-1))
    return unit(np.add.reduceat(parts, starts, axis=0))


def unit(vectors: Vectors) -> Vectors:
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit: Vectors = vectors / np.where(norms == 0, 1, norms)
    return unit
