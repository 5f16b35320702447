"""Evaluation: rankings against hand-made ones, and the whole of it on a small model."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from engine.adapt.batches import TokenCorpus
from engine.adapt.convert import built_in_texts
from engine.adapt.corpora import Corpus
from engine.adapt.documents import Document
from engine.adapt.evaluate import (
    as_rows,
    bm25_scores,
    fidelity_at,
    recall_by_position,
    retrieval_on,
)
from engine.adapt.evaluate_passages import headed_documents, passage_retrieval_on
from engine.adapt.held_out import LongDocuments
from engine.adapt.report import EvaluationPlan, evaluate
from engine.adapt.retrieval import best_of_parts, quality, ranks_of, spearman, top_agreement
from engine.config import EngineConfig
from engine.model.embedding_model import EmbeddingModel, load_model

if TYPE_CHECKING:
    from tests.conftest import WriteCheckpoint


@pytest.fixture
def model(write_checkpoint: WriteCheckpoint) -> EmbeddingModel:
    return load_model(str(write_checkpoint("bert")), config=EngineConfig(device="cpu"))


def test_ranks_put_the_wanted_one_last_among_equals() -> None:
    scores = np.array([[0.9, 0.5, 0.1], [0.2, 0.2, 0.1], [0.0, 0.5, 0.3]], np.float32)
    assert ranks_of(scores, [0, 0, 0]).tolist() == [1, 2, 3]


def test_quality_of_known_ranks() -> None:
    scores = np.eye(20, dtype=np.float32)
    scores[0, 1] = 2.0  # one query finds its document second
    found = quality(scores, range(20))
    assert found.recall_at_1 == pytest.approx(0.95)
    assert found.recall_at_10 == 1.0
    assert found.mrr == pytest.approx((19 + 0.5) / 20)
    assert found.ndcg_at_10 == pytest.approx((19 + 1 / np.log2(3)) / 20)


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
    ]
    assert rows[0]["mrr"] == rows[2]["mrr"]
    assert all(row["queries"] == 10 for row in rows)


def test_recall_by_position(model: EmbeddingModel) -> None:
    corpus = TokenCorpus.of(built_in_texts()[:20], model.tokenizer)
    found = recall_by_position(model, corpus, length=120, count=8, planted_tokens=20)
    assert [one.position for one in found] == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert all(1 / 8 <= one.quality.mrr <= 1 for one in found)


def test_the_whole_report(model: EmbeddingModel) -> None:
    plan = EvaluationPlan(
        corpora=("speeches",),
        lengths=(32, 10**7),
        texts=20,
        long=LongDocuments(shortest=100, most=3),
        planted_documents=4,
        planted_length=300,
        window=64,
    )
    told: list[str] = []
    kept: list[int] = []
    found = evaluate(
        model, [model], plan, told.append, lambda so_far: kept.append(len(json.dumps(so_far)))
    )
    assert kept == sorted(kept)
    assert kept[-1] == len(json.dumps(found))
    assert [row["tokens"] for row in found["fidelity"]] == [32]
    assert {row["corpus"] for row in found["retrieval"]} == {"speeches"}
    assert found["held_out"]["speeches"]
    assert len(found["recall_by_position"]) == 5
    assert told == [
        "fidelity at 32 tokens",
        "fidelity at 10000000 tokens",
        "retrieval among 3 documents of speeches",
        "recall by position",
    ]
    json.dumps(found)
