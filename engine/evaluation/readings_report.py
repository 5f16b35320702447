"""Which reading of chunks is best: chosen on validation corpora, judged once on others.

The validation corpora are those that the models were trained on, by the parts that were held out.
On the test corpora nothing was trained, and no share is chosen. Each comparison is a difference
question by question, with a bootstrap interval by documents; `pooled` lets each corpus count alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, pairwise
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from engine.errors import InvalidInput, find_named
from engine.evaluation.bootstrap import COVERAGE, RESAMPLES, Answers, pooled, pooled_by_name
from engine.evaluation.corpora import (
    FRESH_SOURCES,
    GROUPS,
    SOURCES,
    TRAINED_SOURCES,
    held_out_part,
    installed,
    load_corpus,
)
from engine.evaluation.corpus_vectors import CorpusVectors, read_corpus
from engine.evaluation.model_pairs import ModelPair, difference_of, mean_difference
from engine.evaluation.reading_documents import (
    FRESH_LIMITS,
    DocumentLimits,
    reading_documents,
)
from engine.evaluation.readings import (
    CUTOFF,
    Reading,
    answers_by_heading,
    answers_by_paragraph,
    answers_by_paragraph_whole,
)
from engine.evaluation.vector_store import VectorStore
from engine.model.embedding_model import EmbeddingModel

LATE_SHARES = (0.0, 0.5, 1.0)
ADDED_SHARES = (0.0, 0.15, 0.2, 0.3, 0.6, 1.0)
TITLE_SHARES = (0.15, 0.2, 0.3, 0.45, 0.6, 1.0)
RIVAL_SHARES = (*ADDED_SHARES, 1.5, 2.0)
TOLERANCE = 0.005
"""Later paragraphs may be found by this much less than with half late chunks and nothing added."""

ALONE = Reading()
LATE = Reading(late=1.0)
HALF = Reading(late=0.5)
TITLE_BEFORE = Reading(title_before=True)

Report: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Question:
    """A kind of question: how it is answered, and which of its queries count."""

    name: str
    answer: Callable[[CorpusVectors, Reading], Answers]
    counts: Callable[[CorpusVectors], NDArray[np.bool_]]

    def answers(self, corpora: Sequence[CorpusVectors], reading: Reading) -> dict[str, Answers]:
        found = {}
        for corpus in corpora:
            everything, chosen = self.answer(corpus, reading), self.counts(corpus)
            if chosen.any():
                values, documents = everything.values[chosen], everything.documents[chosen]
                found[corpus.name] = Answers(values, documents)
        return found


def _blocks_away(least: int, most: float) -> Callable[[CorpusVectors], NDArray[np.bool_]]:
    return lambda corpus: (corpus.by_heading.blocks >= least) & (corpus.by_heading.blocks <= most)


def _every_paragraph(corpus: CorpusVectors) -> NDArray[np.bool_]:
    return np.ones(len(corpus.by_paragraph.wanted), bool)


BY_HEADING = Question(
    "passages that need their document", answers_by_heading, lambda one: one.by_heading.is_headed
)
BY_PARAGRAPH = Question("a later paragraph", answers_by_paragraph, _every_paragraph)
WHOLE_BY_PARAGRAPH = Question(
    "whole documents by a later paragraph", answers_by_paragraph_whole, _every_paragraph
)
QUESTIONS = (
    BY_HEADING,
    Question(
        "paragraphs by title and first sentence",
        answers_by_heading,
        lambda one: ~one.by_heading.is_headed,
    ),
    Question(
        "passages that alone miss the top 10",
        answers_by_heading,
        lambda corpus: answers_by_heading(corpus, ALONE).values == 0,
    ),
    Question("the title is in the same block", answers_by_heading, _blocks_away(0, 0)),
    Question("the title is 1 to 4 blocks away", answers_by_heading, _blocks_away(1, 4)),
    Question("the title is farther away", answers_by_heading, _blocks_away(5, 1e9)),
    BY_PARAGRAPH,
    WHOLE_BY_PARAGRAPH,
)


@dataclass(frozen=True, kw_only=True)
class Split:
    validation: tuple[str, ...]
    test: tuple[str, ...]


def split_corpora(names: Sequence[str], leave_out: Sequence[str] = ()) -> Split:
    """Validation and test corpora; by default those that no model was trained on are left out.

    The name of a group stands for those of its corpora that are installed.
    """
    chosen, left_out = _without_groups(names or GROUPS), _without_groups(leave_out)
    for name in (*chosen, *left_out):
        find_named("corpus", name, SOURCES, code="unknown_corpus")
    test = left_out or tuple(name for name in chosen if name not in TRAINED_SOURCES)
    validation = tuple(name for name in chosen if name not in test and name in TRAINED_SOURCES)
    if not validation:
        raise InvalidInput(
            "no corpus is left to choose shares on; leave fewer out, or install their packages",
            code="no_validation_corpus",
            param="leave_out",
        )
    return Split(validation=validation, test=test)


def _without_groups(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(
        name for one in names for name in (installed(GROUPS[one]) if one in GROUPS else [one])
    )


def evaluate_readings(
    model: EmbeddingModel,
    split: Split,
    limits: DocumentLimits | None = None,
    progress: Callable[[str], None] | None = None,
    *,
    fresh_limits: DocumentLimits | None = None,
    others: Mapping[str, EmbeddingModel] | None = None,
    pairs: Sequence[ModelPair] = (),
    store: VectorStore | None = None,
) -> Report:
    """Choose shares on the validation corpora, then read the test corpora once.

    `others` are models to compare, by name: the late chunks of one pass, and nothing read alone.
    `pairs` are those of them that were trained alike, with LLN and without.
    """
    tell = progress or (lambda _: None)
    limits, fresh_limits = limits or DocumentLimits(), fresh_limits or FRESH_LIMITS
    others = others or {}
    reader = _Reader(model, others, store or VectorStore(), limits, fresh_limits, tell)
    validation = reader.read(split.validation)
    chosen = choose_readings(validation)
    tell(f"chosen: {chosen['default']}")
    test = reader.read(split.test)
    return {
        "model": model.name,
        "weights": model.checkpoint.sha256,
        "calibration": model.info.calibration,
        "others": {name: one.info.calibration for name, one in others.items()},
        "torch": torch.__version__,
        "limits": asdict(limits),
        "fresh_limits": asdict(fresh_limits),
        **report_on(validation, test, chosen, pairs),
    }


@dataclass(frozen=True)
class _Reader:
    model: EmbeddingModel
    others: Mapping[str, EmbeddingModel]
    store: VectorStore
    limits: DocumentLimits
    fresh_limits: DocumentLimits
    tell: Callable[[str], None]

    def read(self, names: Sequence[str]) -> list[CorpusVectors]:
        found = []
        for number, name in enumerate(names, start=1):
            corpus = held_out_part(name) if name in TRAINED_SOURCES else load_corpus(name)
            limits = self.fresh_limits if name in FRESH_SOURCES else self.limits
            documents = reading_documents(corpus, self.model.tokenizer, limits)
            if len(documents) > 1:
                tokens = sum(len(one.ids) for one in documents)
                counted = f"{len(documents)} documents, {tokens:,} tokens"
                self.tell(f"{name}, corpus {number} of {len(names)}: {counted}")
                found.append(
                    read_corpus(self.model, name, documents, limits, self.others, self.store)
                )
        return found


def choose_readings(validation: Sequence[CorpusVectors]) -> dict[str, Reading]:
    """The default and its rivals, each with the shares that are best on the validation corpora.

    "default", "opening", "mean" and those of other models, by their names, find later paragraphs
    within TOLERANCE of half late chunks. The readings "for passages" are best for passages alone,
    whatever they cost later paragraphs.
    """
    mixtures = [Reading(late=late, opening=share) for late in LATE_SHARES for share in ADDED_SHARES]
    openings = [Reading(opening=share) for share in RIVAL_SHARES]
    means = [Reading(mean=share) for share in RIVAL_SHARES]
    one_pass = {
        name: [Reading(late=1.0, opening=share, model=name) for share in ADDED_SHARES]
        for name in _models(validation)
    }
    least = _score(BY_PARAGRAPH, validation, HALF) - TOLERANCE
    by_heading = {
        one: _score(BY_HEADING, validation, one)
        for one in (*mixtures, *openings, *means, *chain.from_iterable(one_pass.values()))
    }

    def best(readings: Sequence[Reading]) -> Reading:
        return max(readings, key=lambda one: by_heading[one])

    def best_of_both(readings: Sequence[Reading]) -> Reading:
        fitting = [one for one in readings if _score(BY_PARAGRAPH, validation, one) >= least]
        return best(fitting or readings[:1])

    titles = [Reading(title=share) for share in RIVAL_SHARES]
    words, rival = best_of_both(mixtures), best_of_both(openings)
    share = _share_of_title(validation, words, rival, least)
    return {
        "default": replace(words, found_title=share),
        "first words": words,
        "title told": replace(words, opening=0.0, title=share),
        "opening": replace(rival, found_title=share),
        "mean": best_of_both(means),
        "default for passages": best(mixtures),
        "opening for passages": best(openings),
        "mean for passages": best(means),
        "title": max(titles, key=lambda one: _score(BY_HEADING, validation, one)),
        **{name: best_of_both(readings) for name, readings in one_pass.items()},
    }


def _share_of_title(
    validation: Sequence[CorpusVectors], mixture: Reading, rival: Reading, least: float
) -> float:
    """The largest share of a title with which later paragraphs are found well enough by all that
    add one: to the mixture, found or told, and to passages read alone."""

    def is_fit(share: float) -> bool:
        found = replace(mixture, found_title=share)
        told = replace(mixture, opening=0.0, title=share)
        readings = (found, told, replace(rival, found_title=share))
        return all(_score(BY_PARAGRAPH, validation, one) >= least for one in readings)

    return max(filter(is_fit, TITLE_SHARES), default=mixture.opening)


def _models(corpora: Sequence[CorpusVectors]) -> list[str]:
    return list(corpora[0].others) if corpora else []


def _score(question: Question, corpora: Sequence[CorpusVectors], reading: Reading) -> float:
    found = pooled(list(question.answers(corpora, reading).values()))
    return found.mean if found else 0.0


def report_on(
    validation: Sequence[CorpusVectors],
    test: Sequence[CorpusVectors],
    chosen: Mapping[str, Reading],
    pairs: Sequence[ModelPair] = (),
) -> Report:
    """Readings and comparisons on both parts, as JSON."""
    return {
        "metric": f"mean reciprocal rank at {CUTOFF}",
        "intervals": f"{COVERAGE:.0%}, {RESAMPLES} resamples by documents within each corpus; "
        "pooled: the mean of the corpora's means, each corpus counting alike; pooled_fresh: the "
        "same over the corpora that were never scored before",
        "pairs": [asdict(one) for one in pairs],
        "chosen_on_validation": {name: asdict(one) for name, one in chosen.items()},
        "grid_on_validation": _grid(validation),
        "order": "shares are chosen before the test corpora are scored, once",
        "validation": _part(validation, chosen, pairs),
        "test": _part(test, chosen, pairs),
    }


def _grid(validation: Sequence[CorpusVectors]) -> list[Report]:
    return [
        {
            "late": late,
            "opening": share,
            **{
                question.name: _score(question, validation, Reading(late=late, opening=share))
                for question in (BY_HEADING, BY_PARAGRAPH)
            },
        }
        for late in LATE_SHARES
        for share in ADDED_SHARES
    ]


def _part(
    corpora: Sequence[CorpusVectors], chosen: Mapping[str, Reading], pairs: Sequence[ModelPair]
) -> Report:
    return {
        "corpora": {
            one.name: {
                "is_fresh": one.name in FRESH_SOURCES,
                "documents": one.num_documents,
                "titles_found": int(one.has_title.sum()),
                "tokens": one.num_tokens,
                "passages": len(one.passages.owners),
                "queries_by_heading": len(one.by_heading.wanted),
                "queries_by_paragraph": len(one.by_paragraph.wanted),
            }
            for one in corpora
        },
        "questions": {
            question.name: _on_question(question, corpora, chosen, pairs) for question in QUESTIONS
        },
    }


def _on_question(
    question: Question,
    corpora: Sequence[CorpusVectors],
    chosen: Mapping[str, Reading],
    pairs: Sequence[ModelPair],
) -> Report:
    models = _models(corpora)
    readings = _readings(chosen, models)
    if question.answer is not answers_by_heading:  # chunks have no title put before them
        readings = {name: one for name, one in readings.items() if not one.title_before}
    answers = {name: question.answers(corpora, one) for name, one in readings.items()}
    compared = (*COMPARISONS, *_comparisons_of(models, pairs))
    differences = {
        f"{first} minus {second}": difference_of(answers[first], answers[second])
        for first, second in compared
        if first in answers and second in answers
    }
    for how in _ONE_PASS if pairs else ():
        each = [differences[" minus ".join(one.readings(how))] for one in pairs]
        differences[f"mean over the pairs, {how}"] = mean_difference(each)
    return {
        "queries": {name: len(one.values) for name, one in answers["passage alone"].items()},
        "readings": {name: _as_rows(found) for name, found in answers.items()},
        "differences": {name: _as_rows(found) for name, found in differences.items()},
    }


_ONE_PASS = ("late", "late and opening")
"""How the other models are read."""


def _comparisons_of(models: Sequence[str], pairs: Sequence[ModelPair]) -> list[tuple[str, str]]:
    """Each model against the readings of the first, and each model of a pair with its control.

    Without pairs, each is compared with the next."""
    rivals = ("passage alone", "late", "half late", "default", "alone and opening")
    against = [(f"{name}, late", rival) for name in models for rival in rivals]
    with_opening = [
        (f"{name}, late and opening", rival)
        for name in models
        for rival in ("default", "alone and opening")
    ]
    compared = pairs or [ModelPair(first, second) for first, second in pairwise(models)]
    return against + with_opening + [one.readings(how) for one in compared for how in _ONE_PASS]


def _readings(chosen: Mapping[str, Reading], models: Sequence[str]) -> dict[str, Reading]:
    found = {
        "passage alone": ALONE,
        "late": LATE,
        "half late": HALF,
        "title before": TITLE_BEFORE,
        "title added": chosen["title"],
        "alone and mean": chosen["mean"],
        "alone and opening": chosen["opening"],
        "alone and mean, for passages": chosen["mean for passages"],
        "alone and opening, for passages": chosen["opening for passages"],
        "default": chosen["default"],
        "default, first words": chosen["first words"],
        "default, title told": chosen["title told"],
        "mixture, for passages": chosen["default for passages"],
    }
    for name in ("late", "half late", "default", "default, first words", "mixture, for passages"):
        found[f"{name} without LLN"] = replace(found[name], without_lln=True)
    for name in models:
        found[f"{name}, late"] = Reading(late=1.0, model=name)
        found[f"{name}, late and opening"] = chosen[name]
    return found


COMPARISONS = (
    ("default", "passage alone"),
    ("default", "title before"),
    ("default", "half late"),
    ("default", "default without LLN"),
    ("default, first words", "default, first words without LLN"),
    ("default", "alone and opening"),
    ("default", "alone and mean"),
    ("default", "default, first words"),
    ("default, title told", "title before"),
    ("late", "passage alone"),
    ("late", "late without LLN"),
    ("half late", "half late without LLN"),
    ("mixture, for passages", "mixture, for passages without LLN"),
    ("mixture, for passages", "alone and opening, for passages"),
    ("mixture, for passages", "alone and mean, for passages"),
    ("mixture, for passages", "title before"),
)


def _as_rows(corpora: Mapping[str, Answers]) -> Report:
    fresh = [answers for name, answers in corpora.items() if name in FRESH_SOURCES]
    intervals = {**pooled_by_name(corpora), "pooled_fresh": pooled(fresh)}
    return {
        name: None
        if found is None
        else {key: round(value, 4) for key, value in asdict(found).items()}
        for name, found in intervals.items()
    }
