"""The training steps: the teacher's windows, cut queries, stretches and the window loss."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from engine.checkpoint.calibration import Calibration
from engine.model.embedding_model import EmbeddingModel
from engine.model.encoder import Encoder
from engine.model.pooling import whole_texts
from engine.training.convert import built_in_texts
from engine.training.data import Document
from engine.training.losses import retrieval_loss, teacher_targets, unit_vectors, window_loss
from engine.training.pairs import PairCorpus
from engine.training.recipe import Stage, TrainingPlan
from engine.training.student import Student, StudentPlan
from engine.training.token_corpus import Batch, TokenCorpus
from engine.training.trainer import StepReport, Trainer
from engine.training.training_corpora import TrainingCorpora
from engine.training.training_steps import TrainingSteps, cut_queries
from engine.types import Precision


def test_a_teacher_reads_long_texts_through_overlapping_windows(
    teacher: EmbeddingModel, corpus: TokenCorpus
) -> None:
    batch = corpus.batch(100, 4, np.random.default_rng(0))
    whole = teacher_targets(teacher.encoder, batch, 100, "mean")
    windowed = teacher_targets(teacher.encoder, batch, 40, "mean")
    assert len(windowed.states) == len(whole.states) == 2
    assert windowed.states[-1].shape == whole.states[-1].shape
    assert bool(torch.isfinite(windowed.states[-1]).all())
    with torch.no_grad():
        ids = batch.ids
        first = torch.cat([ids[:39], ids[99:100]])
        alone = teacher.encoder(first, [0, 40])
    # The first window's rows up to the middle of its overlap with the second.
    assert torch.allclose(windowed.states[-1][:28], alone[:28], atol=1e-5)


def test_cut_queries_and_the_rest_make_up_the_text(corpus: TokenCorpus) -> None:
    batch = corpus.batch(60, 4, np.random.default_rng(0))
    queries, rests = cut_queries(batch, 10, np.random.default_rng(1))
    for (q0, q1), (r0, r1), (start, end) in zip(
        queries.spans, rests.spans, batch.spans, strict=True
    ):
        whole = batch.ids[start:end].tolist()
        query, rest = queries.ids[q0:q1].tolist(), rests.ids[r0:r1].tolist()
        assert (query[0], query[-1]) == (whole[0], whole[-1])
        assert sorted(query[1:-1] + rest) == sorted(whole)


@torch.no_grad()
def test_stretches_count_as_much_as_queries(
    teacher: EmbeddingModel, calibration: Calibration, corpus: TokenCorpus
) -> None:
    texts = [text for text in built_in_texts() if len(text) > 900][:6]
    documents = [Document(str(n), "", text, text[:200]) for n, text in enumerate(texts)]
    pairs = PairCorpus({"manual": documents}, teacher.tokenizer)
    stage = Stage(
        kind="pairs", steps=1, lengths=(96,), batch_tokens=300, rates={"encoder": 1e-3}, stretches=3
    )
    student = Student(teacher, calibration, StudentPlan())
    steps = TrainingSteps(
        teacher,
        student,
        TrainingCorpora(windows=corpus, pairs=pairs),
        TrainingPlan(stages=(stage,)),
    )
    generator = np.random.default_rng(0)
    generator.choice(stage.lengths)
    batch = pairs.documents(96, 300, generator, stretches=3)
    assert batch.stretches is not None

    def read(encoder: Encoder, one: Batch) -> torch.Tensor:
        return unit_vectors(encoder(one.ids, one.bounds), whole_texts(one.bounds), "mean")

    found = read(student.encoder(), batch.documents)
    queries = read(student.encoder(), batch.queries)
    stretches = read(teacher.encoder, batch.stretches)
    wanted = torch.tensor(batch.stretch_targets)

    def expected(candidates: torch.Tensor, hidden: torch.Tensor) -> float:
        asked = retrieval_loss(queries, candidates, hidden=hidden)
        return float(asked + retrieval_loss(stretches, candidates, wanted, hidden[wanted])) / 2

    def step() -> float:
        return float(steps.loss(stage, np.random.default_rng(0)).parts["retrieval"])

    own = torch.eye(len(found), dtype=torch.bool)
    none = torch.zeros_like(own)
    assert step() == pytest.approx(expected(found, none), rel=1e-5)
    # The same documents are remembered then, and each is a wrong answer to the others alone.
    both, hidden = torch.cat([found, found]), torch.cat([none, own], dim=1)
    assert step() == pytest.approx(expected(both, hidden), rel=1e-5)


def test_the_teacher_multiplies_in_the_precision_of_the_plan(
    teacher: EmbeddingModel, calibration: Calibration, corpus: TokenCorpus
) -> None:
    stage = Stage(
        kind="contrast", steps=1, lengths=(60,), batch_tokens=240, query_tokens=9, rates={}
    )
    batch = corpus.batch(60, 4, np.random.default_rng(0))

    def vectors(precision: Precision) -> torch.Tensor:
        plan = TrainingPlan(stages=(stage,), precision=precision)
        student = Student(teacher, calibration, StudentPlan())
        steps = TrainingSteps(teacher, student, TrainingCorpora(windows=corpus), plan)
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
            return steps._teacher_vectors(batch)

    exact, narrow = vectors("float32"), vectors("bfloat16")
    cosines = (exact * narrow).sum(1)
    assert float(cosines.min()) > 0.999
    assert float((exact - narrow).abs().max()) > 1e-4  # float32 would be the same


@pytest.mark.long
@pytest.mark.usefixtures("little_watched")
def test_the_window_loss_holds_documents_near_the_teacher(
    teacher: EmbeddingModel, calibration: Calibration, corpus: TokenCorpus, tmp_path: Path
) -> None:
    texts = [text for text in built_in_texts() if len(text) > 900][:6]
    documents = [Document(str(n), "", text, text[:200]) for n, text in enumerate(texts)]
    pairs = PairCorpus({"manual": documents}, teacher.tokenizer)

    def held(share: float) -> list[StepReport]:
        stage = Stage(
            kind="pairs",
            steps=5,
            lengths=(96,),
            batch_tokens=400,
            rates={"encoder": 3e-3},
            cut_share=0.5,
            held_share=share,
        )
        plan = TrainingPlan(stages=(stage,), warmup=1, teacher_window=40)
        student = Student(teacher, calibration, StudentPlan())
        folder = tmp_path / str(share)
        corpora = TrainingCorpora(windows=corpus, pairs=pairs)
        return list(Trainer(teacher, student, corpora, plan, folder).steps())

    for step in (hardly := held(1e-6)):
        found = step.parts["retrieval"] + step.parts["fidelity"] + 1e-6 * step.parts["window"]
        assert step.loss == pytest.approx(found, rel=1e-4)
    firmly = held(10.0)
    assert hardly[0].parts["window"] == pytest.approx(firmly[0].parts["window"])
    assert firmly[-1].parts["window"] < hardly[-1].parts["window"]


def test_the_window_loss_compares_consecutive_windows(
    teacher: EmbeddingModel, corpus: TokenCorpus
) -> None:
    batch = corpus.batch(98, 2, np.random.default_rng(0))
    states = torch.randn(len(batch.ids), teacher.encoder.weights.width)
    for first, end in batch.spans:
        read = [
            teacher.encoder(batch.ids[[first, *range(at, at + 48), end - 1]], [0, 50])
            for at in (first + 1, first + 49)
        ]
        states[first:end] = torch.cat([read[0][:-1], read[1][1:]])
    near = window_loss(states, teacher.encoder, batch, 50, "mean")
    assert float(near) == pytest.approx(0, abs=1e-5)
    for row in (5, 60):  # one of either window
        moved = states.clone()
        moved[row] += 10
        assert float(window_loss(moved, teacher.encoder, batch, 50, "mean")) > 1e-3
