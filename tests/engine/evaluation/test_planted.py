"""Passages planted in other documents are found, wherever they stand."""

from __future__ import annotations

import numpy as np
import pytest

from engine.errors import InvalidInput
from engine.evaluation.planted import draw_planted, recall_by_position
from engine.model.embedding_model import EmbeddingModel
from engine.training.convert import built_in_texts
from engine.training.token_corpus import TokenCorpus


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
