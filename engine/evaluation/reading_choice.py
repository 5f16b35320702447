"""The shares of each reading, chosen on the validation corpora alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from statistics import fmean

from engine.evaluation.bootstrap import mean_of_means
from engine.evaluation.corpus_vectors import CorpusVectors
from engine.evaluation.questions import BY_FIRST_SENTENCE, BY_HEADING, BY_PARAGRAPH, Question
from engine.evaluation.readings import Reading
from engine.text.chunking import SHARES
from engine.types import Context

HALF = Reading(late=0.5)


def _as_served(context: Context) -> Reading:
    """The shares of a context, whatever the validation corpora would choose."""
    alone, opening, title, linked = SHARES[context]
    return Reading(late=1 - alone, opening=opening, found_title=title, linked=linked)


BALANCED = _as_served("balanced")
ONE_PASS = _as_served("one_pass")
OPENING = _as_served("opening")
LINKED = _as_served("linked")
LATE_SHARES = (0.0, 0.5, 1.0)
ADDED_SHARES = (0.0, 0.15, 0.2, 0.3, 0.6, 1.0)
TITLE_SHARES = (0.15, 0.2, 0.3, 0.45, 0.6, 0.75, 0.9, 1.0, 1.5, 2.0)
RIVAL_SHARES = (*ADDED_SHARES, 1.5, 2.0)
KINDS = (BY_HEADING, BY_FIRST_SENTENCE, BY_PARAGRAPH)
"""The kinds of question that a reading may be good or bad at."""
TOLERANCE = 0.005
"""Later paragraphs may be found by this much less than with half late chunks and nothing added."""


def choose_readings(validation: Sequence[CorpusVectors]) -> dict[str, Reading]:
    """The default and its rivals, each with the shares that are best on the validation corpora.

    All but those "for passages", and the told title, find later paragraphs within TOLERANCE of
    half late chunks. The readings "for passages" are best for passages alone, whatever they cost
    later paragraphs.
    """
    choice = _Choice(validation)
    mixtures = [Reading(late=late, opening=share) for late in LATE_SHARES for share in ADDED_SHARES]
    openings = [Reading(opening=share) for share in RIVAL_SHARES]
    means = [Reading(mean=share) for share in RIVAL_SHARES]
    titles = [Reading(title=share) for share in RIVAL_SHARES]
    words, rival = choice.best_of_both(mixtures), choice.best_of_both(openings)
    share = choice.share_of_title(words, rival)
    evened = [replace(one, evens_title=True) for one in (words, rival)]
    share_evened = choice.share_of_title(*evened)
    return {
        "default": replace(words, found_title=share),
        "first words": words,
        "title told": replace(words, opening=0.0, title=share),
        "opening": replace(rival, found_title=share),
        "title evened": replace(evened[0], found_title=share_evened),
        "opening, title evened": replace(evened[1], found_title=share_evened),
        "mean": choice.best_of_both(means),
        "default for passages": choice.best(mixtures),
        "opening for passages": choice.best(openings),
        "mean for passages": choice.best(means),
        "title": choice.best(titles),
        **_of_one_pass(validation, [""]),
        **_of_one_pass(validation, models_beside(validation)),
    }


def _of_one_pass(validation: Sequence[CorpusVectors], models: Sequence[str]) -> dict[str, Reading]:
    """Late chunks with the opening: first words, or the title where one is found. All of the models
    have the same shares, so that nothing else makes them differ.

    What is chosen "for every kind" loses least against balanced, as it is served, by the kind of
    question by which it loses most.
    """
    if not models:
        return {}
    choice = _Choice(validation, models)
    words = choice.best_of_both([Reading(late=1.0, opening=share) for share in ADDED_SHARES])
    titled = [replace(words, found_title=share) for share in TITLE_SHARES]
    chosen = {
        "late and first words": words,
        "late and title": choice.best_of_both([words, *titled]),
        "late and title, for every kind": choice.best_by_worst([words, *titled], BALANCED),
    }
    return {
        f"{name}, {how}" if name else how: replace(one, model=name)
        for name in models
        for how, one in chosen.items()
    }


def models_beside(corpora: Sequence[CorpusVectors]) -> list[str]:
    """The other models that have read these corpora."""
    return list(corpora[0].others) if corpora else []


def score(question: Question, corpora: Sequence[CorpusVectors], reading: Reading) -> float:
    return mean_of_means(list(question.answers(corpora, reading).values()))


class _Choice:
    """Chooses readings for all of the models together; "" is the model that is judged."""

    def __init__(self, validation: Sequence[CorpusVectors], models: Sequence[str] = ("",)) -> None:
        self._validation = validation
        self._models = models

    def best(self, readings: Sequence[Reading]) -> Reading:
        """What finds most passages; of equally good ones the first."""
        return max(readings, key=lambda one: self._score(BY_HEADING, one))

    def best_of_both(self, readings: Sequence[Reading]) -> Reading:
        """The best of those that find later paragraphs well enough, or else the first."""
        return self.best(list(filter(self._is_fit, readings)) or readings[:1])

    def best_by_worst(self, readings: Sequence[Reading], rival: Reading) -> Reading:
        """The reading whose margin over the rival, by its worst kind of question, is largest."""
        kinds = [kind for kind in KINDS if kind.answers(self._validation, rival)]
        to_beat = {kind: score(kind, self._validation, rival) for kind in kinds}
        return max(
            readings, key=lambda one: min(self._score(kind, one) - to_beat[kind] for kind in kinds)
        )

    def share_of_title(self, mixture: Reading, rival: Reading) -> float:
        """The largest share of a title with which later paragraphs are found well enough by all
        that add one: to the mixture, found or told, and to passages read alone."""

        def is_fit(share: float) -> bool:
            found = replace(mixture, found_title=share)
            told = replace(mixture, opening=0.0, title=share)
            return all(map(self._is_fit, (found, told, replace(rival, found_title=share))))

        return max(filter(is_fit, TITLE_SHARES), default=mixture.opening)

    def _is_fit(self, reading: Reading) -> bool:
        return self._score(BY_PARAGRAPH, reading) >= self._least

    @cached_property
    def _least(self) -> float:
        return score(BY_PARAGRAPH, self._validation, HALF) - TOLERANCE

    def _score(self, question: Question, reading: Reading) -> float:
        return fmean(
            score(question, self._validation, replace(reading, model=name)) for name in self._models
        )
