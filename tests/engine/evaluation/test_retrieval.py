"""Fidelity and retrieval of a small model, by documents, paragraphs and passages."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.evaluation.corpora import (
    Corpus,
    LongDocuments,
    long_documents,
)
from engine.evaluation.fidelity import fidelity_at
from engine.evaluation.passages import headed_documents, passage_retrieval_on
from engine.evaluation.retrieval import as_rows, bm25_scores, retrieval_on
from engine.evaluation.taken_out import Questions, take_out_paragraphs
from engine.model.embedding_model import EmbeddingModel
from engine.training.convert import built_in_texts
from engine.training.data import Document
from engine.training.token_corpus import TokenCorpus


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
