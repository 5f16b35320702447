"""Real text for experiments: packaged corpora, split by document.

A fifth of the documents is held out, by each document's own hash; half of that is for validation
and half for the test.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from engine.evaluation.corpora import load_corpus
from engine.experiments.tasks.task import Part
from engine.training.data import Document, digest_in_order, for_training, held_out

_HELD_OUT = 0.2


@cache
def parts_of(corpus: str) -> Mapping[Part, Sequence[Document]]:
    """The documents of each part; a typed error if the corpus is unknown or not installed."""
    return split(load_corpus(corpus).documents)


def split(documents: Sequence[Document]) -> Mapping[Part, Sequence[Document]]:
    test = held_out(documents, _HELD_OUT / 2)
    held, for_test = held_out(documents, _HELD_OUT), set(test)
    return {
        "training": for_training(documents, _HELD_OUT),
        "validation": [document for document in held if document not in for_test],
        "test": test,
    }


def digests(corpora: Sequence[str]) -> dict[str, str]:
    """A hash of each corpus as it is installed here."""
    return {name: digest_in_order(parts_of(name).values()) for name in corpora}
