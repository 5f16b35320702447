"""The whole evaluation of a small model, and what it warns of."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

import pytest

from engine.config import EngineConfig
from engine.errors import InvalidInput
from engine.evaluation import corpora
from engine.evaluation.corpora import SOURCES, LongDocuments, held_out_part
from engine.evaluation.report import EvaluationPlan, Report, evaluate
from engine.model.embedding_model import EmbeddingModel, load_model
from engine.training.data import DATA_FILE, Document
from engine.training.token_corpus import TokenCorpus
from tests.engine.evaluation.students import adapted, named

if TYPE_CHECKING:
    from tests.conftest import WriteCheckpoint


@pytest.fixture(autouse=True)
def short_speeches(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first pages of the first speeches: the whole corpus takes seconds to tokenise."""
    source = SOURCES["speeches"]

    def read() -> Iterator[Document]:
        for speech in islice(source.read(), 60):
            yield replace(speech, body=speech.body[:9000])

    few = {**SOURCES, "speeches": replace(source, read=read)}
    monkeypatch.setattr(corpora, "SOURCES", few)


SMALL_PLAN = EvaluationPlan(
    corpora=("speeches",),
    lengths=(32,),
    texts=20,
    long=LongDocuments(shortest=100, most=3),
    planted_documents=4,
    planted_length=300,
    window=64,
)


class Enough(Exception):
    """Ends an evaluation that a test needs no more of."""


def opening_of(
    teacher: EmbeddingModel,
    students: Sequence[EmbeddingModel],
    told: list[str] | None = None,
    plan: EvaluationPlan = SMALL_PLAN,
) -> Report:
    """The first that an evaluation keeps."""
    kept: list[Report] = []

    def keep(found: Report) -> None:
        kept.append(found)
        raise Enough

    with pytest.raises(Enough):
        evaluate(teacher, students, plan, None if told is None else told.append, keep)
    return kept[0]


def test_the_whole_report(model: EmbeddingModel) -> None:
    plan = replace(SMALL_PLAN, lengths=(32, 10**7))
    told: list[str] = []
    kept: list[int] = []
    found = evaluate(
        model, [model], plan, told.append, lambda so_far: kept.append(len(json.dumps(so_far)))
    )
    assert kept == sorted(kept)
    assert kept[-1] == len(json.dumps(found))
    assert [row["tokens"] for row in found["fidelity"]] == [32]
    assert {row["corpus"] for row in found["retrieval"]} == {"speeches"}
    assert Counter(row["asked_by"] for row in found["retrieval"]) == {
        "query": 7,
        "later paragraph": 7,
    }
    assert all(row["queries"] == row["documents"] == 3 for row in found["retrieval"])
    assert found["held_out"]["speeches"]
    assert found["warnings"] == []
    assert len(found["recall_by_position"]) == 5
    bodies = [document.body for document in held_out_part("speeches").documents]
    longest = TokenCorpus.of(bodies, model.tokenizer).longest
    assert told == [
        "fidelity at 32 tokens",
        "fidelity at 10000000 tokens",
        f"fidelity at 10000000 tokens is left out: the longest document has {longest}",
        "retrieval among 3 documents of speeches",
        "recall by position",
    ]
    json.dumps(found)


def test_documents_too_short_to_plant_in_cost_no_other_part(model: EmbeddingModel) -> None:
    plan = replace(SMALL_PLAN, planted_length=10**7, long=LongDocuments(shortest=100, most=2))
    told: list[str] = []
    found = evaluate(model, [model], plan, told.append)
    assert found["retrieval"]
    assert found["recall_by_position"] == []
    assert told[-1].startswith("recall by position at 9999872 tokens is left out")


def test_a_teacher_of_rotary_positions_reads_beyond_the_window(
    write_checkpoint: WriteCheckpoint,
) -> None:
    """As in training: it has no table to read windows by, so it is itself at any length."""
    model = load_model(str(write_checkpoint("modernbert")), config=EngineConfig(device="cpu"))
    kept = opening_of(model, [model], plan=replace(SMALL_PLAN, lengths=(200,)))
    assert kept["fidelity"][0]["mean_cosine"] == pytest.approx(1, abs=1e-5)


def test_models_whose_folders_share_a_name_are_told_apart(model: EmbeddingModel) -> None:
    students = [named(model, name) for name in ("./a/model", "./b/model", "./c/other")]
    found = opening_of(model, students)
    assert list(found["students"]) == ["./a/model", "./b/model", "other"]
    assert [row["model"] for row in found["fidelity"]] == ["./a/model"]


def test_a_student_of_other_weights_is_refused(
    model: EmbeddingModel, write_checkpoint: WriteCheckpoint
) -> None:
    others = (write_checkpoint("roberta"), write_checkpoint("bert", seed=1))
    for other in (load_model(str(folder), config=model.config) for folder in others):
        for teacher, student in ((model, other), (other, model)):
            with pytest.raises(InvalidInput) as caught:
                evaluate(teacher, [teacher, student], SMALL_PLAN)
            assert caught.value.code == "not_the_teacher"
            assert f"{student.name} was not made from the teacher, {teacher.name}" in str(
                caught.value
            )


def test_lengths_that_hold_no_word(model: EmbeddingModel) -> None:
    with pytest.raises(InvalidInput, match="above the 2 special tokens"):
        evaluate(model, [model], replace(SMALL_PLAN, lengths=(64, 2)))


def test_warnings_are_told_and_kept(model: EmbeddingModel) -> None:
    account = {"sources": {"folder": {"held_out": "a", "trained_on": "b"}}}
    (model.checkpoint.folder / DATA_FILE).write_text(json.dumps(account))
    told: list[str] = []
    students = [named(adapted(model), "student")]
    [warning] = opening_of(model, students, told)["warnings"]
    assert warning.startswith("student was trained on folder")
    assert told[0] == f"warning: {warning}"
