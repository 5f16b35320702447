"""What `lln adapt` reads."""

from __future__ import annotations

from engine.evaluation.corpora import load_corpus
from service.cli.adapt import read_training_data


def test_a_corpus_outside_training_may_be_trained_on() -> None:
    (documents,) = read_training_data(["traditions"]).values()
    assert documents == load_corpus("traditions").documents
