"""Which corpora shares are chosen on, and which are judged on."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from engine.errors import InvalidInput, find_named
from engine.evaluation.corpora import GROUPS, SOURCES, TRAINED_SOURCES, installed


@dataclass(frozen=True, kw_only=True)
class Split:
    validation: tuple[str, ...]
    test: tuple[str, ...]
    trained: frozenset[str]
    """Those that a model was trained on in part. Only their held-out parts are read."""


def split_corpora(
    names: Sequence[str],
    leave_out: Sequence[str] = (),
    choose_on: Sequence[str] = (),
    *,
    trained: Collection[str] = tuple(TRAINED_SOURCES),
) -> Split:
    """Validation and test corpora; by default those that no model was trained on are left out.

    `trained` are those that one was trained on; the models that ship were, on some, in any case.
    With `choose_on`, these are the validation corpora, and by default all others are left out.
    The name of a group stands for those of its corpora that are installed.
    """
    chosen, left_out = _without_groups(names or GROUPS), _without_groups(leave_out)
    given = _without_groups(choose_on)
    for name in (*chosen, *left_out, *given):
        find_named("corpus", name, SOURCES, code="unknown_corpus")
    of_choice = given or trained
    test = left_out or tuple(name for name in chosen if name not in of_choice)
    if both := [name for name in given if name in test]:
        raise InvalidInput(
            f"shares cannot be chosen on corpora that are left out: {', '.join(both)}",
            code="chosen_on_test_corpus",
            param="choose_on",
            actual=", ".join(both),
        )
    validation = given or tuple(name for name in chosen if name not in test and name in trained)
    if not validation:
        raise InvalidInput(
            "no corpus is left to choose shares on; leave fewer out, or install their packages",
            code="no_validation_corpus",
            param="leave_out",
        )
    return Split(validation=validation, test=test, trained=frozenset({*trained, *TRAINED_SOURCES}))


def _without_groups(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(
        name for one in names for name in (installed(GROUPS[one]) if one in GROUPS else [one])
    )
