"""Warnings that a model was trained on documents that it is evaluated on."""

from __future__ import annotations

import json

import pytest

from engine.evaluation.corpora import (
    NEW_SOURCES,
    TRAINED_SOURCES,
    Corpus,
)
from engine.evaluation.overlap import overlap_warnings, trained_corpora
from engine.model.embedding_model import EmbeddingModel, load_model
from engine.training.data import DATA_FILE, Document, fingerprint
from engine.training.model_folder import read_record, with_earlier_records
from tests.engine.evaluation.students import adapted, named


def test_overlap_warnings_compare_the_training_record(
    model: EmbeddingModel,
) -> None:
    model = adapted(model)
    evaluated = Corpus("speeches", (Document("1", "", "one"), Document("2", "", "two")))
    other = Corpus("manuals", (Document("3", "", "three"),))
    those, these = fingerprint(other.documents), fingerprint(evaluated.documents)

    def warnings_for(**sources: object) -> str:
        record = json.dumps({"sources": sources})
        (model.checkpoint.folder / DATA_FILE).write_text(record)
        return "; ".join(overlap_warnings("student", model, [evaluated, other]))

    assert warnings_for(speeches={"held_out": these, "trained_on": "a"}) == ""
    assert warnings_for(kernel={"held_out": "a", "trained_on": "b"}) == ""
    assert warnings_for(exported={"held_out": these, "trained_on": "a"}) == ""
    assert "another state of speeches" in warnings_for(
        speeches={"held_out": "a", "trained_on": "b"}
    )
    assert "may include documents of speeches, manuals" in warnings_for(
        folder={"held_out": "a", "trained_on": "b"}
    )
    assert "trained on the very documents" in warnings_for(
        folder={"held_out": "a", "trained_on": those}
    )
    earlier = {"sources": {"folder": {"held_out": "a", "trained_on": those}}}
    (model.checkpoint.folder / DATA_FILE).write_text(json.dumps({"sources": {}, "before": earlier}))
    [warning] = overlap_warnings("student", model, [other])
    assert "trained on the very documents" in warning


@pytest.mark.parametrize(
    "content",
    ["[1, 2]", "not json", '{"sources": ["of another tool"]}', '{"sources": {}, "before": null}'],
)
def test_an_adapted_model_without_a_record(model: EmbeddingModel, content: str) -> None:
    corpus = Corpus("speeches", (Document("1", "", "one"),))
    for student in (adapted(model), named(adapted(model), "default")):
        [warning] = overlap_warnings("student", student, [corpus])
        assert "student has no record" in warning
    (model.checkpoint.folder / DATA_FILE).write_text(content)
    [warning] = overlap_warnings("student", adapted(model), [corpus])
    assert "include documents" in warning
    assert list(overlap_warnings("as published", model, [corpus])) == []
    assert trained_corpora([model]) == set(TRAINED_SOURCES), "no record names others"


def test_shipped_models_have_records(default_model: EmbeddingModel) -> None:
    then = load_model("documents", config=default_model.config)
    [of_default], of_documents = (
        list(with_earlier_records(read_record(model))) for model in (default_model, then)
    )
    assert of_default is not None
    assert set(of_default["sources"]) == set(TRAINED_SOURCES)
    of_mean, *of_parts = of_documents
    assert of_mean is not None
    assert [part["share"] for part in of_mean["averaged"]] == [pytest.approx(1 / 3)] * 3
    assert of_parts[1::2] == [of_default] * 3  # each part continued from it
    assert all(part and set(part["sources"]) >= set(TRAINED_SOURCES) for part in of_parts)
    assert trained_corpora([default_model]) == set(TRAINED_SOURCES)
    assert trained_corpora([default_model, then]) == {*TRAINED_SOURCES, *NEW_SOURCES}
    kernel = Corpus("kernel", (Document("1", "", "one"),))
    [warning] = overlap_warnings("documents", then, [kernel])
    assert "documents was trained on another state of kernel" in warning
