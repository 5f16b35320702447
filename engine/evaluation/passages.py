"""Retrieval of passages that need their document, by several ways to read them.

A query names a document by its title and a passage by its heading. The passage contains neither:
its heading is cut, and the title is at the document's beginning. A vector of the passage alone has
to guess. A vector that is pooled from states of the whole document does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from engine.evaluation.corpora import Corpus
from engine.evaluation.rankings import quality
from engine.evaluation.retrieval import ALONE_SHARE, Retrieval, Scorer
from engine.execution.results import add_opening, blend_standalone
from engine.model.embedding_model import EmbeddingModel
from engine.text.chunking import OPENING_TOKENS
from engine.text.tokenizer import TextTokenizer
from engine.training.encode import Vectors, ids_of, read_whole, unit, vectors_of
from engine.training.heading_passages import is_long_enough, passage_spans, passages_of
from engine.training.token_corpus import TokenRange
from engine.types import Ids

OPENING_SHARE = 1.0
"""The weight of a document's opening in its passages' vectors, for the methods that add it."""


@dataclass(frozen=True)
class HeadedDocument:
    """A document made of a title and passages, as ids between special tokens."""

    ids: Ids
    title: str
    spans: list[TokenRange]  # the passages to find
    queries: list[str]  # one each
    texts: list[str]  # their sections' whole text


def headed_documents(
    corpus: Corpus, tokenizer: TextTokenizer, *, most_tokens: int
) -> list[HeadedDocument]:
    """The first documents with sections, up to `most_tokens` in all."""
    found: list[HeadedDocument] = []
    for one in _headed(corpus, tokenizer):
        most_tokens -= len(one.ids)
        if most_tokens < 0 and found:
            break
        found.append(one)
    return found


def passage_retrieval_on(
    teacher: EmbeddingModel,
    students: Mapping[str, EmbeddingModel],
    name: str,
    documents: Sequence[HeadedDocument],
    *,
    bm25: Scorer | None = None,
) -> list[Retrieval]:
    """Find each query's passage among those of all documents, by every method."""
    tokenizer = teacher.tokenizer
    asked = ids_of([query for one in documents for query in one.queries], tokenizer)
    alone = [
        tokenizer.between_special(one.ids[slice(*span)]) for one in documents for span in one.spans
    ]
    queries = vectors_of(teacher, asked)
    scores = {
        "teacher, passage alone": queries @ vectors_of(teacher, alone).T,
        "teacher, title put before it": queries
        @ vectors_of(teacher, _titled(documents, tokenizer)).T,
    }
    for label, student in students.items():
        queries = vectors_of(student, asked)
        for method, found in _ways_of(student, documents).items():
            scores[f"{label}, {method}"] = queries @ found.T
    if bm25 is not None:
        passages = [text for one in documents for text in one.texts]
        scores["BM25, passage alone"] = bm25(
            [q for one in documents for q in one.queries], passages
        )
    asked_of = np.repeat(range(len(documents)), [len(one.queries) for one in documents]).tolist()
    return [
        Retrieval(corpus=name, method=method, quality=quality(found, range(len(asked)), asked_of))
        for method, found in scores.items()
    ]


def _ways_of(student: EmbeddingModel, documents: Sequence[HeadedDocument]) -> dict[str, Vectors]:
    """The passages' vectors by method."""
    before = student.tokenizer.num_prefix
    openings = [(0, min(OPENING_TOKENS, len(one.ids))) for one in documents]
    spans = [[begin, *one.spans] for begin, one in zip(openings, documents, strict=True)]
    late = read_whole(student, [one.ids for one in documents], spans).late
    alone = vectors_of(
        student,
        [
            student.tokenizer.between_special(one.ids[max(start, before) : end])
            for one, inside in zip(documents, spans, strict=True)
            for start, end in inside
        ],
    )
    half = blend_standalone(late, alone, ALONE_SHARE)
    ends = np.cumsum([len(inside) for inside in spans])[:-1]
    return {
        "passage alone": _passages_of(alone, ends),
        "late chunk": _passages_of(late, ends),
        "late chunk with the opening": _passages_of(late, ends, OPENING_SHARE),
        "late chunk, half alone": _passages_of(half, ends),
        "late chunk, half alone, with the opening": _passages_of(half, ends, OPENING_SHARE),
    }


def _passages_of(vectors: Vectors, ends: NDArray[np.int64], opening_share: float = 0.0) -> Vectors:
    """Unit vectors of passages; `vectors` have each document's opening before its passages."""
    documents = np.split(vectors, ends)
    return unit(np.concatenate([add_opening(one[1:], one[0], opening_share) for one in documents]))


def _titled(documents: Sequence[HeadedDocument], tokenizer: TextTokenizer) -> list[Ids]:
    titles = [item.content for item in tokenizer.encode_batch([one.title for one in documents])]
    return [
        tokenizer.between_special(np.concatenate([title, one.ids[slice(*span)]]))
        for title, one in zip(titles, documents, strict=True)
        for span in one.spans
    ]


def _headed(corpus: Corpus, tokenizer: TextTokenizer) -> Iterator[HeadedDocument]:
    for document in corpus.documents:
        passages = passages_of(document)
        if not passages:
            continue
        encoded = tokenizer.encode_batch([document.title, *(one.text for one in passages)])
        parts = [item.content for item in encoded]
        before = tokenizer.num_prefix
        spans = [(before + start, before + end) for start, end in passage_spans(parts)]
        long_enough = [is_long_enough(span) for span in spans]
        if any(long_enough):
            yield HeadedDocument(
                ids=tokenizer.between_special(np.concatenate(parts)),
                title=document.title,
                spans=list(compress(spans, long_enough)),
                queries=list(compress((one.query for one in passages), long_enough)),
                texts=list(compress((one.text for one in passages), long_enough)),
            )
