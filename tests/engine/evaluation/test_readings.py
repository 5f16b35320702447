"""Readings of passages: what is read and asked, the choice of shares, and the whole report."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine.checkpoint.calibration import Calibration
from engine.errors import InvalidInput
from engine.evaluation import bootstrap, corpus_reader, readings_report
from engine.evaluation.corpora import Corpus
from engine.evaluation.corpus_split import split_corpora
from engine.evaluation.corpus_vectors import CorpusVectors, read_corpus
from engine.evaluation.model_pairs import ModelPair
from engine.evaluation.reading_choice import BALANCED, TITLE_SHARES, TOLERANCE, choose_readings
from engine.evaluation.reading_documents import DocumentLimits, reading_documents
from engine.evaluation.readings import (
    Reading,
    answers_by_heading,
    answers_by_paragraph,
    answers_by_paragraph_whole,
)
from engine.evaluation.readings_report import evaluate_readings
from engine.evaluation.vector_store import VectorStore
from engine.model.embedding_model import EmbeddingModel
from engine.text.chunking import SHARES
from engine.training.data import Document
from engine.training.encode import vectors_of
from engine.training.led_passages import led_passages

LIMITS = DocumentLimits(shortest=50, chunk=32)


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report has thousands of intervals, and no test here reads their width."""
    monkeypatch.setattr(bootstrap, "RESAMPLES", 50)


@pytest.fixture
def model(teacher: EmbeddingModel, calibration: Calibration) -> EmbeddingModel:
    return teacher.with_calibration(calibration)


@pytest.fixture
def corpus() -> Corpus:
    return Corpus("small", tuple(headed_document(f"t{n}", n) for n in range(4)))


@pytest.fixture
def read(model: EmbeddingModel, corpus: Corpus) -> CorpusVectors:
    return read_corpus(
        model, corpus.name, reading_documents(corpus, model.tokenizer, LIMITS), LIMITS
    )


def headed_document(title: str, seed: int) -> Document:
    generator = np.random.default_rng(seed)

    def paragraph() -> str:
        return " ".join("".join(generator.choice(list("abcdefg"), 4)) for _ in range(50))

    body = "\n\n".join(f"## xx{n}\n\n{paragraph()}\n\n{paragraph()}" for n in range(4))
    return Document(title, title, body)


def test_documents_to_read(model: EmbeddingModel, corpus: Corpus) -> None:
    documents = reading_documents(corpus, model.tokenizer, LIMITS)
    backwards = reading_documents(Corpus("small", corpus.documents[::-1]), model.tokenizer, LIMITS)
    assert [one.queries for one in documents] == [one.queries for one in backwards]
    assert len(documents) == 4
    for one in documents:
        assert len(one.passages) == len(one.queries) == 4
        assert all(query.split(": ")[1].startswith("xx") for query in one.queries.values())
        assert len(one.paragraphs) == 2  # the second ones of the later two sections


def test_paragraphs_are_asked_for_by_their_first_sentence(model: EmbeddingModel) -> None:
    paragraph = "A first sentence of some length. " + "And words that follow it " * 12 + "{}"
    text = "\n\n".join([*(paragraph.format(n) for n in range(4)), "Short. One."])
    document = Document("t", "the title", text)
    passages = led_passages(document)
    assert [one.query for one in passages] == [
        *["the title: A first sentence of some length."] * 4,
        "",
    ]
    assert passages[0].text.startswith("And words")
    assert led_passages(Document("t", "", text)) == []
    different = text
    for number in range(4):
        different = different.replace("A first", f"Number {number}", 1)
    corpus = Corpus("led", (Document("t", "the title", different),))
    [one] = reading_documents(corpus, model.tokenizer, LIMITS)
    assert not one.is_headed
    assert len(one.paragraphs) + len(one.queries) == 4  # what is taken out is not asked for
    assert one.queries[0] == "the title: Number 0 sentence of some length."


def test_a_query_whose_words_are_in_its_passage_is_not_asked(model: EmbeddingModel) -> None:
    document = headed_document("t", 1)
    told = document.body.replace("## xx2\n\n", "## xx2\n\nxx2 ")
    [one] = reading_documents(Corpus("told", (Document("t", "t", told),)), model.tokenizer, LIMITS)
    assert list(one.queries.values()) == ["t: xx0", "t: xx1", "t: xx3"]


def test_readings_are_what_the_service_computes(
    model: EmbeddingModel, read: CorpusVectors, corpus: Corpus
) -> None:
    [first, *_] = reading_documents(corpus, model.tokenizer, LIMITS)
    alone = Reading().vectors(read, "passages")
    start, end = first.passages[1]
    again = vectors_of(model, [model.tokenizer.between_special(first.ids[start:end])])
    assert alone[1] == pytest.approx(again[0], abs=1e-5)
    mixed = Reading(late=0.5, opening=0.3).vectors(read, "passages")
    halves = read.passages.late[0] + read.passages.alone[0]
    opening = read.openings.late[0] + read.openings.alone[0]
    length = np.linalg.norm(halves)
    by_hand = halves / length + 0.3 * opening / np.linalg.norm(opening)
    assert mixed[0] == pytest.approx(by_hand / np.linalg.norm(by_hand), abs=1e-5)


def test_the_best_possible_reading_finds_everything(read: CorpusVectors) -> None:
    asked = read.by_heading
    read.passages.alone[asked.wanted] = asked.vectors
    found = answers_by_heading(read, Reading())
    assert len(found.values) == 16
    assert np.all(found.values > 0)
    paragraphs = answers_by_paragraph(read, Reading())
    assert len(paragraphs.values) == 8
    assert np.all((paragraphs.values >= 0.25) & (paragraphs.values <= 1))


def test_whole_documents_are_found_by_each_reading(read: CorpusVectors) -> None:
    for reading in (Reading(), Reading(late=1.0), Reading(late=1.0, without_lln=True)):
        found = answers_by_paragraph_whole(read, reading)
        assert len(found.values) == 8
    assert Reading().wholes(read) is read.means
    assert Reading(late=1.0).wholes(read) is read.wholes


def test_another_model_is_read_in_one_pass(
    model: EmbeddingModel, corpus: Corpus, tmp_path: Path
) -> None:
    documents = reading_documents(corpus, model.tokenizer, LIMITS)
    others = {"same": model, "control": model.with_attention("block_diagonal")}
    store = VectorStore(tmp_path)
    read = read_corpus(model, "small", documents, LIMITS, others, store)
    for name, reading in (
        ("same", Reading(late=1.0)),
        ("control", Reading(late=1.0, without_lln=True)),
    ):
        one = Reading(late=1.0, model=name)
        first, second = (each.vectors(read, "passages") for each in (one, reading))
        assert first == pytest.approx(second, abs=1e-6)  # one is scaled to length 1 more often
        assert np.array_equal(one.wholes(read), reading.wholes(read))
        first, second = (
            replace(each, opening=0.3, found_title=0.45).vectors(read, "chunks")
            for each in (one, reading)
        )
        assert first == pytest.approx(second, abs=1e-6)
    kept = sorted(tmp_path.iterdir())
    again = read_corpus(model, "small", documents, LIMITS, others, store)
    assert sorted(tmp_path.iterdir()) == kept
    assert np.array_equal(again.passages.late, read.passages.late)
    part = readings_report.report_on([read], [read], choose_readings([read]))["test"]
    by_heading = part["questions"]["passages that need their document"]
    row = by_heading["differences"]["same, late minus control, late"]["pooled"]
    same, control = (
        answers_by_heading(read, Reading(late=1.0, model=name)).values for name in others
    )
    difference = same - control
    assert row["mean"] == pytest.approx(difference.mean(), abs=1e-4)
    served = Reading(late=1.0, opening=0.2, found_title=0.75, model="same")
    row = by_heading["readings"]["same, one pass"]["pooled"]
    assert row["mean"] == pytest.approx(answers_by_heading(read, served).values.mean(), abs=1e-4)
    cheaper = Reading(opening=0.3, found_title=0.45)
    row = by_heading["differences"]["balanced minus opening"]["pooled"]
    found = [answers_by_heading(read, one).values.mean() for one in (BALANCED, cheaper)]
    assert row["mean"] == pytest.approx(found[0] - found[1], abs=1e-4)


def test_shares_are_chosen_for_both_kinds_of_question(read: CorpusVectors) -> None:
    chosen = choose_readings([read])
    assert chosen["opening"].late == chosen["mean"].late == 0
    half = answers_by_paragraph(read, Reading(late=0.5)).values.mean()
    found = answers_by_paragraph(read, chosen["default"]).values.mean()
    assert found >= half - TOLERANCE
    words, titled = chosen["late and first words"], chosen["late and title"]
    assert words.late == titled.late == 1
    assert titled == replace(words, found_title=titled.found_title)
    by_heading = [answers_by_heading(read, one).values.mean() for one in (words, titled)]
    assert by_heading[1] >= by_heading[0]


def test_one_pass_may_be_chosen_for_every_kind_of_question(read: CorpusVectors) -> None:
    chosen = choose_readings([read])

    def worst(reading: Reading) -> float:
        kinds = (answers_by_heading, answers_by_paragraph)  # the corpus has headings everywhere
        pairs = [(kind(read, reading), kind(read, BALANCED)) for kind in kinds]
        return min(float(mine.values.mean() - theirs.values.mean()) for mine, theirs in pairs)

    fair = chosen["late and title, for every kind"]
    assert fair == replace(chosen["late and title"], found_title=fair.found_title)
    for share in (0.0, *TITLE_SHARES):
        assert worst(fair) >= worst(replace(fair, found_title=share))


@pytest.mark.long
def test_the_whole_report(
    model: EmbeddingModel, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    for load in ("load_corpus", "held_out_part"):
        monkeypatch.setattr(corpus_reader, load, lambda _: corpus)
    told: list[str] = []
    split = split_corpora(["kernel", "essays", "nations"])
    fresh_limits = replace(LIMITS, documents=2)
    found = evaluate_readings(model, split, LIMITS, told.append, fresh_limits=fresh_limits)
    [warning] = found["warnings"]
    assert warning.endswith("that may include documents it is evaluated on")
    assert told[0] == f"warning: {warning}"
    assert told[1].startswith("kernel, corpus 1 of 1: 4 documents, ")
    assert told[-1].startswith("nations, corpus 2 of 2: 2 documents, ")
    again = json.loads(json.dumps(found))
    assert {name: one["is_fresh"] for name, one in again["test"]["corpora"].items()} == {
        "essays": False,
        "nations": True,
    }
    by_heading = again["test"]["questions"]["passages that need their document"]
    assert by_heading["queries"] == {"essays": 16, "nations": 8}
    difference = by_heading["differences"]["late minus late without LLN"]
    assert (
        difference["pooled"]["low"] <= difference["pooled"]["mean"] <= difference["pooled"]["high"]
    )
    assert difference["pooled_fresh"]["mean"] == difference["nations"]["mean"]
    assert (
        again["validation"]["questions"]["a later paragraph"]["readings"]["late"]["pooled_fresh"]
        is None
    )
    assert "title before" not in again["test"]["questions"]["a later paragraph"]["readings"]
    served = SHARES["linked"].title
    [at_served] = [
        row
        for row in again["titles_on_validation"]
        if (row["model"], row["reading"], row["title"]) == ("", "linked", served)
    ]
    for name in ("passages that need their document", "a later paragraph"):
        linked = again["validation"]["questions"][name]["readings"]["linked"]["pooled"]
        assert linked["mean"] == pytest.approx(at_served[name], abs=1e-4)


@pytest.mark.long
def test_pairs_are_compared_and_averaged(
    model: EmbeddingModel, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    for load in ("load_corpus", "held_out_part"):
        monkeypatch.setattr(corpus_reader, load, lambda _: corpus)
    control = model.with_attention("block_diagonal")
    others = {"a": model, "a control": control, "b": control, "b control": model}
    pairs = [ModelPair("a", "a control"), ModelPair("b", "b control")]
    split = split_corpora(["kernel", "essays"])
    found = evaluate_readings(model, split, LIMITS, others=others, pairs=pairs)
    for question in found["test"]["questions"].values():
        differences = question["differences"]
        one = differences["a, late minus a control, late"]["pooled"]
        turned = differences["b, late minus b control, late"]["pooled"]
        mean = differences["mean over the pairs, late"]["pooled"]
        if question["queries"]:
            assert one["mean"] == -turned["mean"]
            assert (mean["mean"], mean["low"], mean["high"]) == (0, 0, 0)
        else:
            assert one is turned is mean is None
        assert "a control, late minus b, late" not in differences


def test_pairs_where_no_corpus_is_left_to_judge_on(
    model: EmbeddingModel, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus_reader, "held_out_part", lambda _: corpus)
    others = {"a": model, "a control": model.with_attention("block_diagonal")}
    split = split_corpora(["kernel"])
    pairs = [ModelPair("a", "a control")]
    found = evaluate_readings(model, split, LIMITS, others=others, pairs=pairs)
    mean = "mean over the pairs, late"
    for part, is_judged in (("validation", True), ("test", False)):
        for question in found[part]["questions"].values():
            assert (mean in question["differences"]) == is_judged


def test_one_document_tells_nothing_from_another(
    model: EmbeddingModel, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus_reader, "held_out_part", lambda _: corpus)
    told: list[str] = []
    limits = replace(LIMITS, documents=1)
    with pytest.raises(InvalidInput, match="none of kernel has two documents") as caught:
        evaluate_readings(model, split_corpora(["kernel"]), limits, told.append)
    assert caught.value.code == "no_validation_corpus"
    assert told[-1] == "kernel, corpus 1 of 1: left out, 1 documents within the limits"


@pytest.mark.long
def test_a_run_that_was_cut_goes_on(
    model: EmbeddingModel, corpus: Corpus, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for load in ("load_corpus", "held_out_part"):
        monkeypatch.setattr(corpus_reader, load, lambda _: corpus)
    split = split_corpora(["kernel", "essays"])
    store = VectorStore(tmp_path)

    def cut(line: str) -> None:
        if line.startswith("chosen"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate_readings(model, split, LIMITS, cut, store=store)
    kept = {file.name: file.stat().st_mtime_ns for file in tmp_path.iterdir()}
    assert kept
    found = evaluate_readings(model, split, LIMITS, store=store)
    assert {name: (tmp_path / name).stat().st_mtime_ns for name in kept} == kept
    assert found == evaluate_readings(model, split, LIMITS)
