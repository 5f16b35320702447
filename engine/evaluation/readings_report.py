"""Which reading of chunks is best: chosen on validation corpora, judged once on others.

The validation corpora are those that the models were trained on, by the parts that were held out.
On the test corpora nothing was trained, and no share is chosen. Each comparison is a difference
question by question, with a bootstrap interval by documents; `pooled` lets each corpus count alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from typing import Any, TypeAlias

import torch

from engine.errors import InvalidInput
from engine.evaluation.bootstrap import COVERAGE, RESAMPLES, Answers, pooled, pooled_by_name
from engine.evaluation.corpora import LATER_SOURCES
from engine.evaluation.corpus_reader import CorpusReader, load_corpora
from engine.evaluation.corpus_split import Split
from engine.evaluation.corpus_vectors import CorpusVectors
from engine.evaluation.model_pairs import ModelPair, difference_of, mean_difference
from engine.evaluation.questions import BY_HEADING, BY_PARAGRAPH, QUESTIONS, Question
from engine.evaluation.reading_choice import (
    ADDED_SHARES,
    BALANCED,
    HALF,
    KINDS,
    LATE_SHARES,
    LINKED,
    ONE_PASS,
    OPENING,
    TITLE_SHARES,
    choose_readings,
    models_beside,
    score,
)
from engine.evaluation.reading_documents import FRESH_LIMITS, DocumentLimits
from engine.evaluation.readings import CUTOFF, Reading, answers_by_heading
from engine.evaluation.vector_store import VectorStore
from engine.model.embedding_model import EmbeddingModel

ALONE = Reading()
LATE = Reading(late=1.0)
TITLE_BEFORE = Reading(title_before=True)

Report: TypeAlias = dict[str, Any]


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
    The result has warnings if one of the models may have been trained on these documents.
    """
    tell = progress or (lambda _: None)
    reader = CorpusReader(
        model=model,
        others=others or {},
        corpora=load_corpora(split),
        store=store or VectorStore(),
        limits=limits or DocumentLimits(),
        fresh_limits=fresh_limits or FRESH_LIMITS,
        tell=tell,
    )
    warnings = list(reader.warnings())
    for warning in warnings:
        tell(f"warning: {warning}")
    validation = reader.read(split.validation)
    _check_validation(validation, split, reader.limits)
    chosen = choose_readings(validation)
    tell(f"chosen: {chosen['default']}")
    test = reader.read(split.test)
    return {
        "model": model.name,
        "weights": model.checkpoint.sha256,
        "calibration": model.info.calibration,
        "others": {name: one.info.calibration for name, one in reader.others.items()},
        "torch": torch.__version__,
        "limits": asdict(reader.limits),
        "fresh_limits": asdict(reader.fresh_limits),
        "warnings": warnings,
        **report_on(validation, test, chosen, pairs),
    }


def _check_validation(
    validation: Sequence[CorpusVectors], split: Split, limits: DocumentLimits
) -> None:
    if not validation:
        raise InvalidInput(
            f"no share can be chosen: none of {', '.join(split.validation)} has two documents "
            f"within the limits, at most {limits.documents} of {limits.shortest} to "
            f"{limits.longest} tokens and {limits.tokens} together",
            code="no_validation_corpus",
            param="corpora",
            limit=2,
        )


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
        "pooled: the mean of the corpora's means, each corpus counting alike, without "
        "those of one document, which have no interval; pooled_fresh: the same over the corpora "
        "that were never scored before",
        "pairs": [asdict(one) for one in pairs],
        "chosen_on_validation": {name: asdict(one) for name, one in chosen.items()},
        "grid_on_validation": _grid(validation),
        "titles_on_validation": _by_weight_of_title(validation),
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
                question.name: score(question, validation, Reading(late=late, opening=share))
                for question in (BY_HEADING, BY_PARAGRAPH)
            },
        }
        for late in LATE_SHARES
        for share in ADDED_SHARES
    ]


def _by_weight_of_title(validation: Sequence[CorpusVectors]) -> list[Report]:
    """The served readings of each model with more or less of the title."""
    served = {"one pass": ONE_PASS, "linked": LINKED}
    readings = [("", "balanced", BALANCED), ("", "opening", OPENING)]
    readings += [
        (model, name, replace(reading, model=model))
        for model in ("", *models_beside(validation))
        for name, reading in served.items()
    ]
    return [
        {
            "model": model,
            "reading": name,
            "title": share,
            **{
                question.name: score(question, validation, replace(reading, found_title=share))
                for question in KINDS
            },
        }
        for model, name, reading in readings
        for share in TITLE_SHARES
    ]


def _part(
    corpora: Sequence[CorpusVectors], chosen: Mapping[str, Reading], pairs: Sequence[ModelPair]
) -> Report:
    return {
        "corpora": {
            one.name: {
                "is_fresh": one.name in LATER_SOURCES,
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
    models = models_beside(corpora)
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
    for how in _ONE_PASS if pairs and models else ():
        each = [differences[" minus ".join(one.readings(how))] for one in pairs]
        differences[f"mean over the pairs, {how}"] = mean_difference(each)
    return {
        "queries": {name: len(one.values) for name, one in answers["passage alone"].items()},
        "documents": {name: one.num_documents for name, one in answers["passage alone"].items()},
        "readings": {name: _as_rows(found) for name, found in answers.items()},
        "differences": {name: _as_rows(found) for name, found in differences.items()},
    }


_ONE_PASS = (
    "late",
    "one pass",
    "linked",
    "late and first words",
    "late and title",
    "late and title, for every kind",
)
"""How the other models are read."""


def _comparisons_of(models: Sequence[str], pairs: Sequence[ModelPair]) -> list[tuple[str, str]]:
    """Each model against the readings of the first, and each model of a pair with its control.

    Without pairs, each is compared with the next."""
    rivals = {
        "late": ("passage alone", "late", "half late", "default", "alone and opening"),
        "one pass": ("balanced", "passage alone", "opening"),
        "linked": ("balanced", "passage alone", "opening", "linked"),
        "late and first words": ("default", "default, first words", "alone and opening"),
        "late and title": ("default", "late and title", "alone and opening"),
        "late and title, for every kind": ("balanced", "passage alone"),
    }
    against = [
        (f"{name}, {how}", rival) for name in models for how in _ONE_PASS for rival in rivals[how]
    ]
    against += [(f"{name}, linked", f"{name}, one pass") for name in models]
    compared = pairs or [ModelPair(first, second) for first, second in pairwise(models)]
    return against + [one.readings(how) for one in compared for how in _ONE_PASS]


_WITH_LATE_CHUNKS = (
    "late",
    "half late",
    "default",
    "default, first words",
    "mixture, for passages",
    "one pass",
    "late and first words",
    "late and title",
)


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
        "balanced": BALANCED,
        "opening": OPENING,
        "one pass": ONE_PASS,
        "linked": LINKED,
        "linked, nothing added": replace(LINKED, opening=0.0, found_title=0.0),
        "default": chosen["default"],
        "default, first words": chosen["first words"],
        "default, title told": chosen["title told"],
        "default, title evened": chosen["title evened"],
        "alone and opening, title evened": chosen["opening, title evened"],
        "mixture, for passages": chosen["default for passages"],
        "late and first words": chosen["late and first words"],
        "late and title": chosen["late and title"],
    }
    for name in _WITH_LATE_CHUNKS:
        found[f"{name} without LLN"] = replace(found[name], without_lln=True)
    for name in models:
        fixed = {"late": LATE, "one pass": ONE_PASS, "linked": LINKED}
        for how in _ONE_PASS:
            label = f"{name}, {how}"
            found[label] = replace(fixed[how], model=name) if how in fixed else chosen[label]
    return found


COMPARISONS = (
    ("balanced", "opening"),
    ("one pass", "balanced"),
    ("one pass", "one pass without LLN"),
    ("one pass", "passage alone"),
    ("linked", "one pass"),
    ("linked", "balanced"),
    ("linked", "opening"),
    ("linked", "passage alone"),
    ("linked", "title before"),
    ("linked, nothing added", "passage alone"),
    ("default", "passage alone"),
    ("default", "title before"),
    ("default", "half late"),
    ("default", "default without LLN"),
    ("default, first words", "default, first words without LLN"),
    ("default", "alone and opening"),
    ("default", "alone and mean"),
    ("default", "default, first words"),
    ("default, title told", "title before"),
    ("default, title evened", "default"),
    ("default, title evened", "passage alone"),
    ("default, title evened", "title before"),
    ("default, title evened", "half late"),
    ("alone and opening, title evened", "alone and opening"),
    ("late", "passage alone"),
    ("late", "late without LLN"),
    ("half late", "half late without LLN"),
    ("mixture, for passages", "mixture, for passages without LLN"),
    ("mixture, for passages", "alone and opening, for passages"),
    ("mixture, for passages", "alone and mean, for passages"),
    ("mixture, for passages", "title before"),
    ("late and title", "late and title without LLN"),
    ("late and title", "default"),
    ("late and title", "alone and opening"),
    ("late and title", "title before"),
)


def _as_rows(corpora: Mapping[str, Answers]) -> Report:
    fresh = [answers for name, answers in corpora.items() if name in LATER_SOURCES]
    intervals = {**pooled_by_name(corpora), "pooled_fresh": pooled(fresh)}
    return {
        name: None
        if found is None
        else {key: round(value, 4) for key, value in asdict(found).items()}
        for name, found in intervals.items()
    }
