"""Chunks that should know their document: their batches, their targets, and learning from them."""

from __future__ import annotations

from pathlib import Path
from statistics import mean

import numpy as np
import pytest
import torch

from engine.checkpoint.calibration import Calibration
from engine.errors import InvalidInput
from engine.model.embedding_model import EmbeddingModel
from engine.text.chunking import OPENING_TOKENS
from engine.training.chunks import CHUNK_TOKENS, ChunkBatch, ChunkCorpus
from engine.training.convert import built_in_texts
from engine.training.data import Document
from engine.training.losses import chunk_targets
from engine.training.recipe import Stage, TrainingPlan
from engine.training.student import Student, StudentPlan
from engine.training.token_corpus import TokenCorpus
from engine.training.trainer import Trainer
from engine.training.training_corpora import TrainingCorpora

STAGE = Stage(
    kind="chunks",
    steps=12,
    lengths=(200,),
    batch_tokens=600,
    rates={"scalars": 2e-2, "maps": 2e-2, "encoder": 2e-3},
    shortest=120,
    context_share=1.0,
    mean_share=0.5,
    fidelity_share=0.1,
)


@pytest.fixture(scope="module")
def documents() -> list[Document]:
    texts = [text for text in built_in_texts() if len(text) > 900][:6]
    titled = [Document(str(n), f"the page {n}", text) for n, text in enumerate(texts[:3])]
    return [*titled, *(Document(str(n), "", text) for n, text in enumerate(texts[3:]))]


@pytest.fixture
def chunks(teacher: EmbeddingModel, documents: list[Document]) -> ChunkCorpus:
    return ChunkCorpus({"manual": documents}, teacher.tokenizer)


def drawn(corpus: ChunkCorpus, seed: int) -> ChunkBatch:
    return corpus.batch(200, 600, 120, np.random.default_rng(seed))


def test_chunks_are_the_same_tokens_in_place_and_alone(chunks: ChunkCorpus) -> None:
    for seed in range(4):
        batch = drawn(chunks, seed)
        assert len(batch.spans) == len(batch.owners) == len(batch.alone.spans)
        for (start, end), owner, (first, last) in zip(
            batch.spans, batch.owners, batch.alone.spans, strict=True
        ):
            begin, stop = batch.documents.spans[owner]
            assert begin < start < end < stop
            assert end - start <= max(CHUNK_TOKENS)
            in_place, alone = batch.documents.ids[start:end], batch.alone.ids[first + 1 : last - 1]
            assert in_place.tolist() == alone.tolist()


def test_a_context_is_the_title_or_the_opening(
    chunks: ChunkCorpus, teacher: EmbeddingModel
) -> None:
    seen: set[int] = set()
    titles = [
        teacher.tokenizer.encode_batch([f"the page {n}"])[0].content.tolist() for n in range(3)
    ]
    for seed in range(8):
        batch = drawn(chunks, seed)
        for (start, _), (first, last) in zip(
            batch.documents.spans, batch.contexts.spans, strict=True
        ):
            context = batch.contexts.ids[first + 1 : last - 1].tolist()
            assert batch.documents.ids[start + 1 :][: len(context)].tolist() == context
            assert context in titles or len(context) == OPENING_TOKENS
            seen.add(len(context))
    assert len(seen) == 2


def test_a_seed_draws_the_same_chunks(chunks: ChunkCorpus) -> None:
    first, again, other = (drawn(chunks, seed) for seed in (1, 1, 2))
    assert first.spans == again.spans
    assert torch.equal(first.documents.ids, again.documents.ids)
    assert not torch.equal(first.documents.ids, other.documents.ids)


def test_documents_too_short_for_chunks(chunks: ChunkCorpus) -> None:
    with pytest.raises(InvalidInput, match="no document has 1000000 tokens") as error:
        chunks.check_documents(10**6)
    assert error.value.code == "too_little_text"


def test_targets_by_hand() -> None:
    alone = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    contexts = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    found = chunk_targets(
        alone, contexts, torch.tensor([0, 0, 1]), context_share=1.0, mean_share=0.0
    )
    half = 2**-0.5
    assert found.tolist() == [
        pytest.approx([half, half]),
        pytest.approx([0.0, 1.0]),
        pytest.approx([half, half]),
    ]
    with_mean = chunk_targets(
        alone, contexts, torch.tensor([0, 0, 1]), context_share=0.0, mean_share=1.0
    )
    first = torch.tensor([1 + half, half])
    assert with_mean[0].tolist() == pytest.approx((first / first.norm()).tolist())


@pytest.mark.parametrize(
    "plan",
    [StudentPlan(), StudentPlan(encoder=False), StudentPlan(without_lln=True)],
    ids=["all", "LLN alone", "control"],
)
def test_chunks_learn_their_context(
    plan: StudentPlan,
    teacher: EmbeddingModel,
    calibration: Calibration,
    corpus: TokenCorpus,
    chunks: ChunkCorpus,
    tmp_path: Path,
    little_watched: None,
) -> None:
    student = Student(teacher, calibration, plan)
    training = TrainingPlan(stages=(STAGE,), warmup=1, save_every=100)
    trainer = Trainer(
        teacher, student, TrainingCorpora(windows=corpus, chunks=chunks), training, tmp_path
    )
    told = [report.parts["context"] for report in trainer.steps()]
    assert mean(told[-5:]) < mean(told[:5])
