"""How good a student is: near to its teacher, and at finding long documents.

Everything is compared with what the teacher can do itself: read the beginning alone, average
windows, or keep a vector for every window.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.adapt.batches import TokenCorpus
from engine.adapt.corpora import Corpus
from engine.adapt.retrieval import RetrievalQuality, best_of_parts, quality, spearman, top_agreement
from engine.model.embedding_model import EmbeddingModel
from engine.model.encoder import Encoder
from engine.model.pooling import pool
from engine.model.tiles import TiledPass, can_tile
from engine.text.tokenizer import TextTokenizer
from engine.types import Ids

Vectors = NDArray[np.float32]

_BATCH_TOKENS = 16_384


@dataclass(frozen=True, kw_only=True)
class Fidelity:
    """How near the student's vectors are to the teacher's, for texts of one length."""

    tokens: int
    texts: int
    mean_cosine: float
    cosine_5th_percentile: float
    top_10_agreement: float
    spearman: float


def fidelity_at(
    teacher: EmbeddingModel,
    student: EmbeddingModel,
    corpus: TokenCorpus,
    length: int,
    *,
    count: int = 200,
    window: int = 512,
    seed: int = 1,
) -> Fidelity:
    """On windows of one length; beyond `window` the teacher's is the mean of its windows'."""
    batch = corpus.batch(length, count, np.random.default_rng([seed, length]))
    texts = [batch.ids[start:end].numpy() for start, end in batch.spans]
    mine = vectors_of(student.encoder, texts)
    theirs = window_means(teacher, texts, window)
    cosines = (mine * theirs).sum(1)
    own, other = mine @ mine.T, theirs @ theirs.T
    apart = ~np.eye(count, dtype=bool)
    np.fill_diagonal(own, -np.inf)
    np.fill_diagonal(other, -np.inf)
    return Fidelity(
        tokens=length,
        texts=count,
        mean_cosine=float(cosines.mean()),
        cosine_5th_percentile=float(np.percentile(cosines, 5)),
        top_10_agreement=top_agreement(own, other, min(10, count - 1)),
        spearman=spearman(own[apart].astype(np.float64), other[apart].astype(np.float64)),
    )


@dataclass(frozen=True, kw_only=True)
class Retrieval:
    corpus: str
    method: str
    quality: RetrievalQuality


def retrieval_on(
    teacher: EmbeddingModel,
    student: EmbeddingModel,
    corpus: Corpus,
    *,
    window: int = 512,
    bm25: Callable[[Sequence[str], Sequence[str]], NDArray[np.float32]] | None = None,
) -> list[Retrieval]:
    """Queries against the documents they were taken from, by every way there is."""
    tokenizer = teacher.tokenizer
    documents = _ids_of([document.body for document in corpus.documents], tokenizer)
    queries = window_means(teacher, _ids_of(corpus.queries, tokenizer), window)
    parts, owners = _window_vectors(teacher.encoder, documents, tokenizer, window)
    late, late_owners = _late_vectors(student.encoder, documents, window)
    scores = {
        "teacher, the beginning": queries @ _first_of(parts, owners).T,
        "teacher, mean of windows": queries @ _means(parts, owners).T,
        "teacher, best window": best_of_parts(queries, parts, owners),
        "student, whole document": queries @ vectors_of(student.encoder, documents).T,
        "student, best late chunk": best_of_parts(queries, late, late_owners),
    }
    if bm25 is not None:
        scores["BM25"] = bm25(corpus.queries, [document.body for document in corpus.documents])
    wanted = range(len(documents))
    return [
        Retrieval(corpus=corpus.name, method=method, quality=quality(found, wanted))
        for method, found in scores.items()
    ]


@dataclass(frozen=True, kw_only=True)
class PositionRecall:
    """How well documents are found by a passage planted at one place of them."""

    position: float  # 0 the beginning, 1 the end
    quality: RetrievalQuality


def recall_by_position(
    teacher: EmbeddingModel,
    student: EmbeddingModel,
    corpus: TokenCorpus,
    *,
    length: int = 2048,
    count: int = 100,
    planted_tokens: int = 128,
    positions: Sequence[float] = (0.0, 0.25, 0.5, 0.75, 1.0),
    seed: int = 2,
) -> list[PositionRecall]:
    """Every document gets a passage of another one; its first half must find the document."""
    generator = np.random.default_rng(seed)
    batch = corpus.batch(length - planted_tokens, count, generator)
    hosts = [batch.ids[start:end].numpy() for start, end in batch.spans]
    planted = corpus.batch(planted_tokens + 2, count, generator)
    passages = [planted.ids[start + 1 : end - 1].numpy() for start, end in planted.spans]
    first, last = hosts[0][:1], hosts[0][-1:]
    halves = [np.concatenate([first, passage[: planted_tokens // 2], last]) for passage in passages]
    queries = vectors_of(teacher.encoder, halves)
    results = []
    for position in positions:
        at = 1 + round(position * (len(hosts[0]) - 2))
        documents = [
            np.concatenate([host[:at], passage, host[at:]])
            for host, passage in zip(hosts, passages, strict=True)
        ]
        scores = queries @ vectors_of(student.encoder, documents).T
        results.append(PositionRecall(position=position, quality=quality(scores, range(count))))
    return results


def bm25_scores(queries: Sequence[str], documents: Sequence[str]) -> NDArray[np.float32]:
    """By the library rank-bm25, on lowercased words."""
    from rank_bm25 import BM25Okapi  # type: ignore[import-not-found]

    index = BM25Okapi([document.lower().split() for document in documents])
    return np.stack([index.get_scores(query.lower().split()) for query in queries]).astype(
        np.float32
    )


def as_rows(results: Sequence[Retrieval]) -> list[dict[str, object]]:
    return [{"corpus": one.corpus, "method": one.method, **asdict(one.quality)} for one in results]


@torch.inference_mode()
def vectors_of(encoder: Encoder, texts: Sequence[NDArray[Any]]) -> Vectors:
    """Unit mean vectors of texts given with their special tokens."""
    found = np.empty((len(texts), encoder.weights.width), np.float32)
    for chosen in _batches([len(text) for text in texts]):
        bounds = [0, *np.cumsum([len(texts[at]) for at in chosen]).tolist()]
        ids = np.concatenate([texts[at] for at in chosen]).astype(np.int64)
        found[chosen] = pool(_states(encoder, ids, bounds), list(pairwise(bounds)), "mean").cpu()
    return _unit(found)


def window_means(teacher: EmbeddingModel, texts: Sequence[Ids], window: int) -> Vectors:
    parts, owners = _window_vectors(teacher.encoder, texts, teacher.tokenizer, window)
    return _means(parts, owners)


def _window_vectors(
    encoder: Encoder, texts: Sequence[Ids], tokenizer: TextTokenizer, window: int
) -> tuple[Vectors, list[int]]:
    """A vector for each window of each text, every window between special tokens of its own."""
    parts: list[Ids] = []
    owners: list[int] = []
    size = window - tokenizer.num_special
    for owner, text in enumerate(texts):
        content = text[tokenizer.num_prefix : len(text) - tokenizer.num_suffix]
        for start in range(0, max(len(content), 1), size):
            piece = content[start : start + size]
            parts.append(np.concatenate([tokenizer.prefix_ids, piece, tokenizer.suffix_ids]))
            owners.append(owner)
    return vectors_of(encoder, parts), owners


@torch.inference_mode()
def _late_vectors(encoder: Encoder, texts: Sequence[Ids], size: int) -> tuple[Vectors, list[int]]:
    """Vectors of the same stretches, pooled from states that have seen the whole document."""
    parts, owners = [], []
    for owner, text in enumerate(texts):
        states = _states(encoder, text, [0, len(text)])
        spans = [(at, min(at + size, len(text))) for at in range(0, len(text), size)]
        parts.append(pool(states, spans, "mean").cpu().numpy())
        owners += [owner] * len(spans)
    return _unit(np.concatenate(parts)), owners


def _states(encoder: Encoder, ids: NDArray[Any], bounds: Sequence[int]) -> Tensor:
    """One very long text goes tile by tile, where its attention allows it."""
    if len(bounds) == 2 and len(ids) > _BATCH_TOKENS and can_tile(encoder):
        tiled = TiledPass(encoder, ids.astype(np.int32), keep_projections=False)
        while not tiled.is_done:
            tiled.visit()
        return tiled.states
    return encoder(torch.from_numpy(ids.astype(np.int64)).to(encoder.device), bounds)


def _batches(lengths: Sequence[int]) -> list[list[int]]:
    """Indices of texts in batches of about so many tokens, a longer text alone."""
    batches: list[list[int]] = []
    room = 0
    for at, length in enumerate(lengths):
        if not batches or length > room:
            batches.append([])
            room = _BATCH_TOKENS
        batches[-1].append(at)
        room -= length
    return batches


def _ids_of(texts: Sequence[str], tokenizer: TextTokenizer) -> list[Ids]:
    return [encoded.ids for encoded in tokenizer.encode_batch(list(texts))]


def _first_of(parts: Vectors, owners: Sequence[int]) -> Vectors:
    first: Vectors = parts[np.flatnonzero(np.diff(np.asarray(owners), prepend=-1))]
    return first


def _means(parts: Vectors, owners: Sequence[int]) -> Vectors:
    starts = np.flatnonzero(np.diff(np.asarray(owners), prepend=-1))
    return _unit(np.add.reduceat(parts, starts, axis=0))


def _unit(vectors: Vectors) -> Vectors:
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit: Vectors = vectors / np.where(norms == 0, 1, norms)
    return unit
