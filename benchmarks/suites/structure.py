"""Boundaries found in an encoder's states, against the headings removed from documentation.

Pk and WindowDiff over paragraphs: lower is better, and 0 means that every heading is found. All
methods place their boundaries before paragraphs, and get the number of headings, except TextTiling,
which chooses its own. "No boundaries" shows the scores of no answer at all, "uniform cuts" those of
chance. Differences are paired by document, and have an interval of 95 % from resampled documents,
drawn within each corpus. None of the documents served to choose the method.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from benchmarks.headed_documents import CORPORA, Sections, draw_sections
from benchmarks.rows import Plan, Row, Target
from benchmarks.workbench import Workbench
from engine.analysis.cache import ByteCache
from engine.analysis.open_document import open_document
from engine.analysis.segmentation import (
    StructurePlan,
    segmentation_layer,
    spans_at,
    structure_steps,
)
from engine.evaluation.bootstrap import Answers, pooled
from engine.model.embedding_model import EmbeddingModel
from engine.steps import finish

NUM_DOCUMENTS, NUM_QUICK = 48, 3  # of each corpus
NUM_SEEN = 115
"""The documents drawn first: 99 served to choose how /v1/structure finds boundaries, and 16 to
judge it before; those left decide whether passages are read alone."""

OURS = "LLN+Diag"
SEED = 7
_CACHE_BYTES = 2**30

MEASURES = ("Pk", "WindowDiff")

Scores: TypeAlias = Mapping[str, NDArray[np.float64]]
"""The measures of every document, by method: [documents, measures]."""

Segmenter: TypeAlias = Callable[[Sections], list[bool]]
"""Which paragraphs begin a segment."""


def measure(bench: Workbench, plan: Plan) -> Iterator[Row]:
    cache = ByteCache(max_bytes=_CACHE_BYTES, max_idle_s=60)
    segmenters: dict[str, Segmenter] = {
        OURS: partial(by_vectors, bench.lln_diag.model, cache),
        "LLN+Diag without passages read alone": partial(
            by_vectors, bench.lln_diag.model, cache, reads_passages=False
        ),
        "TextTiling": by_text_tiling,
        "uniform cuts": by_even_cuts,
        "no boundaries": lambda sections: [False] * len(sections.paragraphs),
    }
    by_corpus: list[Scores] = []
    for corpus, folder in CORPORA.items():
        count = NUM_QUICK if plan.quick else NUM_DOCUMENTS
        drawn = draw_sections(folder, NUM_SEEN + count, SEED)[NUM_SEEN:]
        if not drawn:
            print(f"{corpus}: nothing below {folder}; install the Debian package for its figures")
            continue
        case = f"{corpus}, {len(drawn)} documents"
        # One document after the other: methods share its states while the cache has them.
        found = [
            [_scores(sections, segment(sections)) for segment in segmenters.values()]
            for sections in drawn
        ]
        by_method = np.array(found).swapaxes(0, 1)
        scores = dict(zip(segmenters, by_method, strict=True))
        by_corpus.append(scores)
        yield from _rows(case, scores)
    if by_corpus:
        yield from _differences(by_corpus)


def _rows(case: str, scores: Scores) -> Iterator[Row]:
    for column, measure_name in enumerate(MEASURES):
        rivals = min(scores[name][:, column].mean() for name in ("TextTiling", "uniform cuts"))
        for name, found in scores.items():
            values = found[:, column]
            wins = name == OURS
            yield Row(
                case=case,
                measure=f"mean {measure_name}, {name}",
                value=float(values.mean()),
                target=Target("<=", float(rivals)) if wins else None,
                seconds={},
                spread=(float(values.min()), float(values.max())),
            )


def _differences(by_corpus: Sequence[Scores]) -> Iterator[Row]:
    """Ours less each other method: below 0, ours is better."""
    count = sum(len(scores[OURS]) for scores in by_corpus)
    for column, measure_name in enumerate(MEASURES):
        for other in by_corpus[0]:
            if other == OURS:
                continue
            apart = [scores[OURS][:, column] - scores[other][:, column] for scores in by_corpus]
            found = pooled([Answers(each, np.arange(len(each))) for each in apart])
            assert found is not None, "every corpus has documents"
            yield Row(
                case=f"both corpora, {count} documents",
                measure=f"{measure_name}, {OURS} less {other}, and its interval",
                value=found.mean,
                seconds={},
                spread=(found.low, found.high),
            )


def _scores(sections: Sections, found: list[bool]) -> tuple[float, float]:
    """Pk and WindowDiff with windows of half a mean section, as both were defined."""
    from nltk.metrics.segmentation import pk, windowdiff  # imports SciPy and scikit-learn

    reference, guess = (_marks(flags) for flags in (sections.begins, found))
    width = max(2, round(len(reference) / (2 * (sections.num_boundaries + 1))))
    return pk(reference, guess, k=width), windowdiff(reference, guess, width)


def _marks(flags: Sequence[bool]) -> str:
    """A boundary lies before a paragraph, and never before the first."""
    return "".join("1" if flag else "0" for flag in flags[1:])


def by_vectors(
    model: EmbeddingModel, cache: ByteCache, sections: Sections, *, reads_passages: bool = True
) -> list[bool]:
    document = finish(open_document(sections.text, model, cache))
    content = document.num_tokens - model.tokenizer.num_special
    firsts = np.searchsorted(document.offsets[1:-1, 0], sections.starts) + 1
    # A scale of as many segments as there were, and boundaries before paragraphs only.
    scale = round(content / (sections.num_boundaries + 1))
    plan = StructurePlan(
        layer=segmentation_layer(model),
        places=firsts[1:],
        scales=(scale,),
        reads_passages=reads_passages,
    )
    found = finish(structure_steps(document, plan, cache))
    begins = {span.start for span in spans_at(0, found.segments)[1:]}
    return [int(first) in begins for first in firsts]


def by_text_tiling(sections: Sections) -> list[bool]:
    from nltk.tokenize.texttiling import TextTilingTokenizer
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    text = "\n\n".join(paragraph.replace("\n", " ") for paragraph in sections.paragraphs)
    flags = [False] * len(sections.paragraphs)
    try:
        tiles = TextTilingTokenizer(stopwords=list(ENGLISH_STOP_WORDS)).tokenize(text)
    except ValueError:  # it finds no paragraph breaks that it accepts, so no boundaries
        return flags
    for end in np.cumsum([len(tile) for tile in tiles])[:-1]:
        flags[int(np.abs(np.array(sections.starts) - end).argmin())] = True
    return flags


def by_even_cuts(sections: Sections) -> list[bool]:
    length, cuts = len(sections.paragraphs), sections.num_boundaries
    chosen = {round(cut * length / (cuts + 1)) for cut in range(1, cuts + 1)}
    return [index in chosen for index in range(length)]
