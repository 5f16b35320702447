"""Finds passages by their words (BM25) and by their vectors, and fuses both lists."""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from engine.errors import InvalidInput, unknown_name
from engine.text.unicode import check_unicode
from engine.types import Vector
from service.index.store import IndexStore, Passage

Ways: TypeAlias = Literal["both", "words", "vectors"]
WAYS = get_args(Ways)

DEPTH = 100
"""Passages of each list that are fused."""

RRF_K = 5
"""How slowly a rank's worth falls in reciprocal rank fusion. Chosen on half of the questions of
`python -m benchmarks search`; on the other half it is better than the usual 60."""

MAX_QUERY_CHARACTERS = 8_192
"""Every word of a query is looked up. A whole document is no query."""


@dataclass(frozen=True, kw_only=True)
class Hit:
    """A passage that was found."""

    passage: Passage
    score: float
    words_rank: int | None  # from 1; None if it is not among the first by its words
    vectors_rank: int | None
    similarity: float | None  # cosine of the query and the passage

    def document(self) -> dict[str, Any]:
        """As JSON, on the command line and over HTTP."""
        passage = self.passage
        return {
            "file": passage.path,
            "title": passage.title,
            "headings": passage.headings,
            "page": passage.page,
            "characters": passage.characters._asdict(),
            "text": passage.text,
            "score": self.score,
            "words_rank": self.words_rank,
            "vectors_rank": self.vectors_rank,
            "similarity": self.similarity,
        }


Ranked: TypeAlias = Sequence[tuple[int, float]]
"""Chunks with scores, best first."""


class Searcher:
    """Searches an index, with its vectors in memory. Used by one thread at a time."""

    def __init__(self, store: IndexStore) -> None:
        self._store = store
        self._changes = -1
        self._ids = np.empty(0, np.int64)
        self._matrix: Vector = np.empty((0, store.recipe.dim), np.float32)

    def search(
        self, query: str, vector: Vector | None, *, limit: int, ways: Ways = "both"
    ) -> list[Hit]:
        """The best passages. `vector` is the query's, and not needed for words alone."""
        if ways not in WAYS:
            raise unknown_name("way to search", ways, WAYS, param="ways")
        check_query(query)
        depth = max(DEPTH, limit)
        words = self.by_words(query, depth) if ways != "vectors" else []
        vectors = [] if ways == "words" or vector is None else self.by_vectors(vector, depth)
        fused = fuse([words, vectors])
        return list(self._hits(fused, words, vectors, limit))

    def by_words(self, query: str, limit: int) -> Ranked:
        expression = any_word_of(query)
        return self._store.match(expression, limit) if expression else []

    def by_vectors(self, vector: Vector, limit: int) -> Ranked:
        """The nearest passages, all compared."""
        self._refresh()
        limit = min(limit, len(self._ids))
        if not limit:
            return []
        scores = self._matrix @ vector
        best = np.argpartition(-scores, limit - 1)[:limit]
        # Equal scores by number, so that the order is the same in every run.
        best = best[np.lexsort((self._ids[best], -scores[best]))]
        return [(int(self._ids[at]), float(scores[at])) for at in best]

    def _refresh(self) -> None:
        """Reads the vectors again if the index has changed."""
        changes = self._store.changes
        if changes != self._changes:
            self._ids, self._matrix = self._store.vectors()
            self._changes = changes

    def _hits(self, fused: Ranked, words: Ranked, vectors: Ranked, limit: int) -> Iterable[Hit]:
        words_ranks, vectors_ranks = _ranks(words), _ranks(vectors)
        similarity = dict(vectors)
        found = 0
        for chunk, score in fused:
            passage = self._store.passage(chunk)
            if passage is None:  # its file has changed since its vector was read
                continue
            yield Hit(
                passage=passage,
                score=score,
                words_rank=words_ranks.get(chunk),
                vectors_rank=vectors_ranks.get(chunk),
                similarity=similarity.get(chunk),
            )
            found += 1
            if found == limit:
                return


def check_query(query: str) -> None:
    if not query.strip():
        raise InvalidInput("the query is empty", code="empty_input", param="query", limit=1)
    if len(query) > MAX_QUERY_CHARACTERS:
        raise InvalidInput(
            f"the query has {len(query)} characters, the limit is {MAX_QUERY_CHARACTERS}",
            code="query_too_long",
            param="query",
            limit=MAX_QUERY_CHARACTERS,
            actual=len(query),
        )
    check_unicode(query, "query")


def any_word_of(query: str) -> str:
    """An FTS5 expression that any word of the query matches. Nothing in a query is syntax."""
    runs = ("".join(run) for is_word, run in groupby(query, _is_of_a_word) if is_word)
    return " OR ".join(f'"{word}"' for word in dict.fromkeys(run.lower() for run in runs))


def _is_of_a_word(character: str) -> bool:
    """A word goes on after its marks, such as accents that follow their letters, and vowels in
    Hindi and Thai."""
    return character.isalnum() or character == "_" or unicodedata.category(character)[0] == "M"


def fuse(lists: Iterable[Ranked], k: int = RRF_K) -> Ranked:
    """Reciprocal rank fusion: each list adds 1 / (k + rank)."""
    scores: dict[int, float] = defaultdict(float)
    for ranked in lists:
        for rank, (chunk, _) in enumerate(ranked, start=1):
            scores[chunk] += 1 / (k + rank)
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))


def _ranks(ranked: Ranked) -> Mapping[int, int]:
    return {chunk: rank for rank, (chunk, _) in enumerate(ranked, start=1)}
