"""Linked passages with gradients: the same vectors as are served, and learning from them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import mean

import numpy as np
import pytest
import torch

from engine.checkpoint.calibration import Calibration
from engine.model.embedding_model import EmbeddingModel
from engine.model.pooling import whole_texts
from engine.training.chunks import ChunkBatch, ChunkCorpus
from engine.training.convert import built_in_texts
from engine.training.data import Document
from engine.training.encode import pooling_of, read_linked
from engine.training.linked import linked_states
from engine.training.losses import unit_vectors
from engine.training.recipe import Stage, TrainingPlan
from engine.training.student import Student, StudentPlan
from engine.training.token_corpus import TokenCorpus, packed
from engine.training.trainer import Trainer
from engine.training.training_corpora import TrainingCorpora

STAGE = Stage(
    kind="chunks",
    steps=16,
    lengths=(200,),
    batch_tokens=600,
    rates={"scalars": 2e-2, "maps": 2e-2, "encoder": 2e-3},
    shortest=120,
    fidelity_share=0.1,
    linked=True,
)


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return [text for text in built_in_texts() if len(text) > 900][:4]


def two_documents(model: EmbeddingModel, texts: list[str]) -> tuple[ChunkBatch, list[list[int]]]:
    """Documents of three chunks and of two, and the lengths of these."""
    tokenizer = model.tokenizer
    lengths = [[40, 25, 33], [50, 28]]
    contents = [
        item.content[: sum(own)]
        for item, own in zip(tokenizer.encode_batch(texts), lengths, strict=False)
    ]
    alone = [
        part
        for content, own in zip(contents, lengths, strict=True)
        for part in np.split(content, np.cumsum(own)[:-1])
    ]
    batch = ChunkBatch(
        documents=packed(contents, tokenizer),
        spans=[],
        owners=[0, 0, 0, 1, 1],
        alone=packed(alone, tokenizer),
        contexts=packed([content[:5] for content in contents], tokenizer),
        around=(tokenizer.num_prefix, tokenizer.num_suffix),
    )
    return batch, lengths


def test_they_are_the_vectors_that_are_served(
    teacher: EmbeddingModel, calibration: Calibration, texts: list[str]
) -> None:
    numbers = replace(calibration, mix=torch.full_like(calibration.mix, 0.4))
    student = Student(teacher, numbers, StudentPlan(encoder=False))
    batch, lengths = two_documents(teacher, texts)
    states = linked_states(student.encoder(), batch)
    pooling = pooling_of(teacher)
    found = unit_vectors(states, whole_texts(batch.alone.bounds), pooling)
    served = teacher.with_calibration(student.calibration())
    ids, first = batch.documents.ids.numpy().astype(np.int32), teacher.tokenizer.num_prefix
    spans = [
        [(first + sum(own[:at]), first + sum(own[: at + 1])) for at in range(len(own))]
        for own in lengths
    ]
    wanted = read_linked(served, [ids[start:end] for start, end in batch.documents.spans], spans)
    torch.testing.assert_close(found.detach(), torch.from_numpy(wanted), atol=2e-5, rtol=0)
    torch.autograd.backward(found.sum())
    assert all(
        tensor.grad is not None and tensor.grad.abs().sum() > 0
        for name, tensor in student.tensors.items()
        if name != "key_map"
    )


@pytest.mark.parametrize(
    "plan",
    [StudentPlan(), StudentPlan(encoder=False), StudentPlan(without_lln=True)],
    ids=["all", "LLN alone", "control"],
)
def test_they_learn_their_context(
    plan: StudentPlan,
    teacher: EmbeddingModel,
    calibration: Calibration,
    corpus: TokenCorpus,
    texts: list[str],
    tmp_path: Path,
    little_watched: None,
) -> None:
    documents = [Document(str(n), f"the page {n}", text) for n, text in enumerate(texts)]
    chunks = ChunkCorpus({"manual": documents}, teacher.tokenizer)
    student = Student(teacher, calibration, plan)
    training = TrainingPlan(stages=(STAGE,), warmup=1, save_every=100)
    trainer = Trainer(
        teacher, student, TrainingCorpora(windows=corpus, chunks=chunks), training, tmp_path
    )
    told = [report.parts["context"] for report in trainer.steps()]
    assert mean(told[-6:]) < mean(told[:6])
