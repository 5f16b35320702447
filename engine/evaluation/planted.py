"""How well a document is found by a passage that was planted in it, wherever that stands.

Real queries ask most often for what a document begins with. A planted passage has nothing to do
with its document, so that only its own place tells how much of it the vector keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.evaluation.rankings import RetrievalQuality, quality
from engine.model.embedding_model import EmbeddingModel
from engine.training.encode import vectors_of
from engine.training.token_corpus import TokenCorpus

PLANTED_TOKENS = 128
"""Tokens of the passage that a document is found by, wherever it was planted."""


@dataclass(frozen=True, kw_only=True)
class PositionRecall:
    """How well documents are found by a passage that was planted at one position."""

    position: float  # 0 the beginning, 1 the end
    quality: RetrievalQuality


class Planted(NamedTuple):
    """Documents to plant passages in, and the passages."""

    hosts: list[NDArray[np.int64]]
    passages: list[NDArray[np.int64]]
    sources: NDArray[np.int64]  # the number of the document that each passage is from


def draw_planted(
    corpus: TokenCorpus,
    *,
    length: int,
    count: int,
    planted_tokens: int,
    generator: np.random.Generator,
) -> Planted:
    """Draw hosts, then passages of documents that host none.

    Otherwise a host might hold a passage that is planted elsewhere too, and be as right an answer.
    """
    hosts = corpus.draw(length - planted_tokens, count, generator)
    planted = corpus.draw(planted_tokens + 2, count, generator, leave_out=hosts.documents)
    return Planted(
        hosts=[hosts.windows.ids[start:end].numpy() for start, end in hosts.windows.spans],
        passages=[
            planted.windows.ids[start + 1 : end - 1].numpy() for start, end in planted.windows.spans
        ],
        sources=planted.documents,
    )


def recall_by_position(
    student: EmbeddingModel,
    corpus: TokenCorpus,
    *,
    length: int = 2048,
    count: int = 100,
    planted_tokens: int = PLANTED_TOKENS,
    positions: Sequence[float] = (0.0, 0.25, 0.5, 0.75, 1.0),
    seed: int = 2,
) -> list[PositionRecall]:
    """Plant a passage of another document in each; the passage's first half must find it."""
    hosts, passages, sources = draw_planted(
        corpus,
        length=length,
        count=count,
        planted_tokens=planted_tokens,
        generator=np.random.default_rng(seed),
    )
    first, last = hosts[0][:1], hosts[0][-1:]
    halves = [np.concatenate([first, passage[: planted_tokens // 2], last]) for passage in passages]
    queries = vectors_of(student, halves)
    results = []
    for position in positions:
        at = 1 + round(position * (len(hosts[0]) - 2))
        documents = [
            np.concatenate([host[:at], passage, host[at:]])
            for host, passage in zip(hosts, passages, strict=True)
        ]
        scores = queries @ vectors_of(student, documents).T
        found = quality(scores, range(count), sources.tolist())
        results.append(PositionRecall(position=position, quality=found))
    return results
