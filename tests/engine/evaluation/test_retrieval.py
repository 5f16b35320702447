"""Evaluation: rankings against hand-made ones, and the whole of it on a small model."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from engine.checkpoint.calibration import FILE_NAME
from engine.config import EngineConfig
from engine.errors import InvalidInput
from engine.evaluation.corpora import (
    TRAINED_SOURCES,
    Corpus,
    LongDocuments,
    held_out_part,
    long_documents,
)
from engine.evaluation.overlap import overlap_warnings
from engine.evaluation.passages import headed_documents, passage_retrieval_on
from engine.evaluation.planted import draw_planted, recall_by_position
from engine.evaluation.report import EvaluationPlan, Report, evaluate
from engine.evaluation.retrieval import (
    Questions,
    as_rows,
    best_of_parts,
    bm25_scores,
    clustered_standard_error,
    fidelity_at,
    quality,
    ranks_of,
    retrieval_on,
    spearman,
    take_out_paragraphs,
    top_agreement,
)
from engine.model.embedding_model import EmbeddingModel, load_model
from engine.training.convert import built_in_texts
from engine.training.data import DATA_FILE, Document, TokenCorpus, fingerprint
from engine.training.model_folder import read_record, with_earlier_records

if TYPE_CHECKING:
    from tests.conftest import WriteCheckpoint


@pytest.fixture
def model(write_checkpoint: WriteCheckpoint) -> EmbeddingModel:
    return load_model(str(write_checkpoint("bert")), config=EngineConfig(device="cpu"))


def test_ranks_put_the_wanted_one_last_among_equals() -> None:
    scores = np.array([[0.9, 0.5, 0.1], [0.2, 0.2, 0.1], [0.0, 0.5, 0.3]], np.float32)
    assert ranks_of(scores, [0, 0, 0]).tolist() == [1, 2, 3]


def test_scores_that_are_no_numbers_find_nothing() -> None:
    scores = np.full((3, 4), np.nan, np.float32)
    scores[1] = [0.5, np.nan, 0.1, np.nan]
    scores[2] = [0.1, 0.2, np.nan, 0.3]
    assert ranks_of(scores, [0, 0, 2]).tolist() == [4, 3, 4]


def test_quality_of_known_ranks() -> None:
    scores = np.eye(20, dtype=np.float32)
    scores[0, 1] = 2.0  # one query finds its document second
    found = quality(scores, range(20), range(20))
    assert found.recall_at_1 == pytest.approx(0.95)
    assert found.recall_at_10 == 1.0
    assert found.mrr == pytest.approx((19 + 0.5) / 20)
    assert found.ndcg_at_10 == pytest.approx((19 + 1 / np.log2(3)) / 20)


def test_the_error_of_queries_that_depend_on_each_other() -> None:
    """Ten documents, each asked about four times with the same result, are ten draws and not 40."""
    by_document = np.random.default_rng(0).random(10)
    documents = np.arange(10).repeat(4)
    expected = by_document.std(ddof=1) / np.sqrt(10)
    assert clustered_standard_error(by_document, range(10)) == pytest.approx(expected)
    found = clustered_standard_error(by_document.repeat(4), documents)
    assert found == pytest.approx(expected)
    order = np.random.default_rng(1).permutation(40)
    shuffled = clustered_standard_error(by_document.repeat(4)[order], documents[order])
    assert shuffled == pytest.approx(expected)
    assert clustered_standard_error(by_document, [3] * 10) is None


def test_a_document_is_as_good_as_its_best_part() -> None:
    queries = np.array([[1.0, 0.0]], np.float32)
    parts = np.array([[0.1, 0], [0.7, 0], [0.3, 0]], np.float32)
    assert best_of_parts(queries, parts, [0, 0, 1]).tolist() == [
        [pytest.approx(0.7), pytest.approx(0.3)]
    ]


def test_agreement_and_correlation_know_their_extremes() -> None:
    generator = np.random.default_rng(0)
    scores = generator.standard_normal((5, 30)).astype(np.float32)
    assert top_agreement(scores, scores * 2 + 1) == 1.0
    assert top_agreement(scores, -scores) == 0.0
    values = generator.standard_normal(50)
    assert spearman(values, np.exp(values)) == pytest.approx(1.0)
    assert spearman(values, -values) == pytest.approx(-1.0)


def test_equal_values_share_the_mean_of_their_ranks() -> None:
    rising = np.array([1.0, 2, 3, 4, 5])
    tied = np.array([1.0, 1, 1, 1, 2])
    assert spearman(tied, rising) == pytest.approx(
        np.corrcoef([2.5, 2.5, 2.5, 2.5, 5], rising)[0, 1]
    )
    assert spearman(tied, tied[::-1]) == pytest.approx(spearman(tied[::-1], tied))
    assert spearman(np.ones(5), rising) == spearman(rising, np.ones(5)) == 0.0


def test_a_model_is_true_to_itself(model: EmbeddingModel) -> None:
    corpus = TokenCorpus.of(built_in_texts()[:20], model.tokenizer)
    [short] = fidelity_at(model, {"itself": model}, corpus, 40, count=12, window=64)
    assert short.mean_cosine == pytest.approx(1, abs=1e-5)
    assert short.cosine_5th_percentile == pytest.approx(1, abs=1e-5)
    assert short.top_10_agreement == 1.0
    assert short.spearman > 0.999
    [long] = fidelity_at(model, {"itself": model}, corpus, 200, count=12, window=64)
    assert 0.2 < long.mean_cosine < 0.99999  # its windows do not see each other


def test_retrieval_compares_every_way(model: EmbeddingModel) -> None:
    texts = [text for text in built_in_texts() if len(text) > 900][:15]
    corpus = Corpus(
        "small",
        tuple(Document(str(n), "", text[200:900], text[:200]) for n, text in enumerate(texts)),
    )
    rows = as_rows(retrieval_on(model, {"student": model}, corpus, window=64))
    assert [row["method"] for row in rows] == [
        "teacher, the beginning",
        "teacher, mean of windows",
        "teacher, best window",
        "student, whole document",
        "student, best late chunk",
    ]
    assert all(row["documents"] == row["queries"] == 15 for row in rows)
    assert all(1 / 15 <= float(str(row["mrr"])) <= 1 for row in rows)


def test_a_later_paragraph_is_taken_out_of_its_document() -> None:
    def paragraph(word: str) -> str:
        return f"{word} " * (200 // len(word))

    shared, own = paragraph("shared"), [paragraph("first"), paragraph("second"), paragraph("third")]
    first = Document("1", "", "\n\n".join([*own, "too short", own[0] * 9, shared]), "one")
    before = [own[2], paragraph("before") * 2]
    twice = [paragraph("again")] * 2
    after = [shared, *twice]
    second = Document("2", "", "\n\n".join([*before, *before, paragraph("fourth"), *after]), "two")
    rest, questions = take_out_paragraphs(Corpus("small", (first, second)))
    assert questions == Questions([paragraph("fourth").strip()], [1])
    assert rest.documents[0] == first
    assert rest.documents[1] == replace(second, body="\n\n".join([*before, *before, *after]))
    assert rest.queries == ["one", "two"]


def test_any_place_of_the_later_half_may_be_taken_out() -> None:
    documents = [
        Document(str(n), "", "\n\n".join(f"{n} {at} {'word ' * 50}" for at in range(20)), "")
        for n in range(60)
    ]
    _, questions = take_out_paragraphs(Corpus("many", tuple(documents)))
    assert questions.wanted == list(range(60))
    places = {int(text.split()[1]) for text in questions.texts}
    assert places == set(range(11, 20))


def test_the_first_documents_that_are_long_enough_are_read(model: EmbeddingModel) -> None:
    documents = [Document(str(n), "", "word " * (300 if n % 2 else 5), "") for n in range(60)]
    found = long_documents(
        Corpus("small", tuple(documents)), model, LongDocuments(shortest=100, most=20)
    )
    assert found == Corpus("small", tuple(documents[1:40:2]))


def test_bm25_finds_documents_by_their_words() -> None:
    documents = ["the cat sat", "a dog barked", "rain fell on the roof", "nothing at all"]
    scores = bm25_scores(["dog", "Roof rain"], documents)
    assert scores.shape == (2, 4)
    assert scores.argmax(1).tolist() == [1, 2]


def test_passages_are_read_every_way(model: EmbeddingModel) -> None:
    texts = built_in_texts()
    plain = [" ".join(text.split())[:400] for text in texts[:5]]
    body = "\n".join(f"Part {n}\n======\n\n{text}\n" for n, text in enumerate(plain))
    other = body.replace("Part", "Section").replace("the", "a")
    corpus = Corpus("headed", (Document("1", "One", body), Document("2", "Two", other)))
    documents = headed_documents(corpus, model.tokenizer, most_tokens=10_000)
    assert [len(one.queries) for one in documents] == [5, 5]
    for one in documents:
        for (start, end), text in zip(one.spans, one.texts, strict=True):
            alone = model.tokenizer.encode_batch([text])[0].ids[1:-1]
            assert one.ids[start:end].tolist() == alone[: end - start].tolist()
    assert len(headed_documents(corpus, model.tokenizer, most_tokens=10)) == 1
    rows = as_rows(passage_retrieval_on(model, {"student": model}, "headed", documents))
    assert [row["method"] for row in rows] == [
        "teacher, passage alone",
        "teacher, title put before it",
        "student, passage alone",
        "student, late chunk",
        "student, late chunk with the opening",
        "student, late chunk, half alone",
        "student, late chunk, half alone, with the opening",
    ]
    assert rows[0]["mrr"] == rows[2]["mrr"]
    assert all(row["queries"] == 10 for row in rows)
    [row] = (one for one in rows if one["method"] == "student, late chunk")
    assert row["mrr_standard_error"] is not None


def test_recall_by_position(model: EmbeddingModel) -> None:
    corpus = TokenCorpus.of(built_in_texts()[:20], model.tokenizer)
    found = recall_by_position(model, corpus, length=120, count=8, planted_tokens=20)
    assert [one.position for one in found] == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert all(1 / 8 <= one.quality.mrr <= 1 for one in found)


def test_no_host_holds_a_passage_that_is_planted() -> None:
    """Each document has a token of its own."""
    lengths = [400, 300, 200, 60, 50, 40]
    ids = [np.full(length, at + 10, np.int32) for at, length in enumerate(lengths)]
    corpus = TokenCorpus(ids, np.array([1], np.int32), np.array([2], np.int32))
    generator = np.random.default_rng(0)
    for _ in range(50):
        hosts, passages, sources = draw_planted(
            corpus, length=150, count=5, planted_tokens=20, generator=generator
        )
        of_hosts = {int(host[1]) for host in hosts}
        assert [int(passage[0]) - 10 for passage in passages] == sources.tolist()
        assert not of_hosts & {number + 10 for number in sources.tolist()}
        assert {len(host) for host in hosts} == {130}
        assert {len(passage) for passage in passages} == {20}


def test_one_document_cannot_host_its_own_passages(model: EmbeddingModel) -> None:
    corpus = TokenCorpus.of([" ".join(built_in_texts()[:20])], model.tokenizer)
    with pytest.raises(InvalidInput, match="no other document has 22 tokens"):
        recall_by_position(model, corpus, length=120, count=8, planted_tokens=20)


SMALL_PLAN = EvaluationPlan(
    corpora=("speeches",),
    lengths=(32,),
    texts=20,
    long=LongDocuments(shortest=100, most=3),
    planted_documents=4,
    planted_length=300,
    window=64,
)


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
    longest = TokenCorpus.of([longest_body("speeches")], model.tokenizer).longest
    assert told == [
        "fidelity at 32 tokens",
        "fidelity at 10000000 tokens",
        f"fidelity at 10000000 tokens is left out: the longest document has {longest}",
        "retrieval among 3 documents of speeches",
        "recall by position",
    ]
    json.dumps(found)


def longest_body(corpus: str) -> str:
    return max((document.body for document in held_out_part(corpus).documents), key=len)


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


def adapted(model: EmbeddingModel) -> EmbeddingModel:
    """As if it had been made by `lln adapt`, as far as training records go."""
    (model.checkpoint.folder / FILE_NAME).touch()
    return replace(model, info=replace(model.info, calibration="some"))


def named(model: EmbeddingModel, name: str) -> EmbeddingModel:
    return replace(model, info=replace(model.info, name=name))


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


def test_shipped_models_have_records(default_model: EmbeddingModel) -> None:
    then = load_model("documents", config=default_model.config)
    [of_default], of_documents = (
        list(with_earlier_records(read_record(model))) for model in (default_model, then)
    )
    assert of_default is not None
    assert set(of_default["sources"]) == set(TRAINED_SOURCES)
    of_mean, *of_parts = of_documents
    assert of_mean is not None
    assert [part["share"] for part in of_mean["averaged"]] == [0.5, *[pytest.approx(1 / 6)] * 3]
    assert of_parts[1::2] == [of_default] * 4  # each part continued from it
    assert all(part and set(part["sources"]) >= set(TRAINED_SOURCES) for part in of_parts)
    kernel = Corpus("kernel", (Document("1", "", "one"),))
    [warning] = overlap_warnings("documents", then, [kernel])
    assert "documents was trained on another state of kernel" in warning


def test_warnings_are_told_and_kept(model: EmbeddingModel) -> None:
    account = {"sources": {"folder": {"held_out": "a", "trained_on": "b"}}}
    (model.checkpoint.folder / DATA_FILE).write_text(json.dumps(account))
    told: list[str] = []
    students = [named(adapted(model), "student")]
    [warning] = opening_of(model, students, told)["warnings"]
    assert warning.startswith("student was trained on folder")
    assert told[0] == f"warning: {warning}"
