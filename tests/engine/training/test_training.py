"""Training a student: where it begins, what it learns, and how it resumes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from math import log
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from engine.checkpoint.calibration import (
    FILE_NAME,
    Calibration,
    read_calibration,
    write_calibration,
)
from engine.config import EngineConfig
from engine.errors import CheckpointError, InvalidInput
from engine.model.embedding_model import EmbeddingModel, load_model
from engine.model.pooling import whole_texts
from engine.training import distill, trainer
from engine.training.calibrate import CalibrationPlan
from engine.training.convert import built_in_texts
from engine.training.curves import smoothed, write_curves
from engine.training.data import Document
from engine.training.distill import DistillPlan, distill_model
from engine.training.losses import (
    LossWeights,
    retrieval_loss,
    states_loss,
    teacher_targets,
    unit_vectors,
)
from engine.training.pairs import PairCorpus
from engine.training.recipe import Stage, StageKind, TrainingPlan, load_recipe
from engine.training.student import Part, Student, StudentPlan
from engine.training.token_corpus import Batch, TokenCorpus
from engine.training.trainer import METRICS_FILE, STATE_FILE, WATCHED, Trainer
from engine.training.training_corpora import TrainingCorpora
from engine.types import Precision

if TYPE_CHECKING:
    from tests.conftest import WriteCheckpoint

pytestmark = pytest.mark.usefixtures("little_watched", "without_pictures")

CPU = EngineConfig(device="cpu")
RATES: dict[Part, float] = {"scalars": 1e-2, "maps": 1e-2, "encoder": 1e-3}
STATES = Stage(kind="states", steps=4, lengths=(48, 64), batch_tokens=512, rates=RATES)
PLAN = TrainingPlan(
    stages=(
        replace(STATES, kind="attention"),
        STATES,
        replace(STATES, kind="contrast", query_tokens=8),
    ),
    teacher_window=40,
    save_every=5,
)


def a_batch(corpus: TokenCorpus, length: int = 60) -> Batch:
    return corpus.batch(length, 4, np.random.default_rng(0))


def trained(student: Student) -> Iterator[tuple[str, torch.Tensor]]:
    return ((name, tensor.detach().clone()) for name, tensor in student.tensors.items())


def test_a_student_begins_as_its_calibration(
    teacher: EmbeddingModel, calibration: Calibration, corpus: TokenCorpus
) -> None:
    batch = a_batch(corpus)
    student = Student(teacher, calibration, StudentPlan())
    with torch.no_grad():
        found = student.encoder()(batch.ids, batch.bounds)
        expected = teacher.with_calibration(calibration).encoder(batch.ids, batch.bounds)
    # Shares of exactly 0 and 1 become 0.001 and 0.999, which a gate can move.
    assert torch.allclose(found, expected, atol=0.02)


def test_every_part_learns_and_every_stage_runs(
    teacher: EmbeddingModel, calibration: Calibration, corpus: TokenCorpus, tmp_path: Path
) -> None:
    student = Student(teacher, calibration, StudentPlan())
    before = dict(trained(student))
    Trainer(teacher, student, TrainingCorpora(windows=corpus), PLAN, tmp_path).run()
    moved = {name for name, tensor in trained(student) if not torch.equal(tensor, before[name])}
    assert {"alpha", "beta", "share", "key_shift", "gate", "query_map", "key_map"} <= moved
    assert {"positions", "layers.0.qkv.weight", "layers.1.ffn_norm.bias"} <= moved
    lines = [json.loads(line) for line in (tmp_path / METRICS_FILE).read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(12))
    assert [line["stage"] for line in lines[::4]] == ["attention", "states", "contrast"]


def test_training_brings_the_student_nearer(
    teacher: EmbeddingModel, calibration: Calibration, corpus: TokenCorpus, tmp_path: Path
) -> None:
    student = Student(teacher, calibration, StudentPlan())
    batch = a_batch(corpus, 64)
    targets = teacher_targets(teacher.encoder, batch, 64, "mean")

    def how_far() -> float:
        with torch.no_grad():
            return float(states_loss(student.encoder(), batch, targets, LossWeights(), "mean"))

    before = how_far()
    stage = replace(STATES, steps=30, lengths=(64,), rates={"scalars": 1e-2, "maps": 1e-2})
    plan = TrainingPlan(stages=(stage,), teacher_window=64, warmup=1)
    Trainer(teacher, student, TrainingCorpora(windows=corpus), plan, tmp_path).run()
    assert how_far() < 0.9 * before


def test_an_interrupted_run_ends_where_a_whole_one_does(
    teacher: EmbeddingModel, calibration: Calibration, corpus: TokenCorpus, tmp_path: Path
) -> None:
    whole, stopped = (Student(teacher, calibration, StudentPlan()) for _ in range(2))
    Trainer(teacher, whole, TrainingCorpora(windows=corpus), PLAN, tmp_path / "whole").run()
    first = Trainer(teacher, stopped, TrainingCorpora(windows=corpus), PLAN, tmp_path / "stopped")
    for report in first.steps():
        if report.step == 7:  # two steps after the last save
            break
    resumed = Student(teacher, calibration, StudentPlan())
    second = Trainer(teacher, resumed, TrainingCorpora(windows=corpus), PLAN, tmp_path / "stopped")
    assert second.step == 5
    second.run()
    for name, tensor in trained(whole):
        assert torch.equal(tensor, resumed.tensors[name]), name
    lines = (tmp_path / "stopped" / METRICS_FILE).read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(12))


def test_a_full_disk_is_told_and_the_last_state_stays(
    teacher: EmbeddingModel, calibration: Calibration, corpus: TokenCorpus, tmp_path: Path
) -> None:
    student = Student(teacher, calibration, StudentPlan())
    run = Trainer(teacher, student, TrainingCorpora(windows=corpus), PLAN, tmp_path)
    run.save()
    before = (tmp_path / STATE_FILE).read_bytes()
    unfinished = tmp_path / f"{STATE_FILE}.new"
    unfinished.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left") as caught:
        run.save()
    assert caught.value.filename == str(unfinished)
    assert (tmp_path / STATE_FILE).read_bytes() == before


def test_another_plan_does_not_resume(
    teacher: EmbeddingModel, calibration: Calibration, corpus: TokenCorpus, tmp_path: Path
) -> None:
    student = Student(teacher, calibration, StudentPlan())
    Trainer(teacher, student, TrainingCorpora(windows=corpus), PLAN, tmp_path).save()
    with pytest.raises(InvalidInput, match="another plan"):
        Trainer(teacher, student, TrainingCorpora(windows=corpus), replace(PLAN, seed=1), tmp_path)


@pytest.mark.parametrize("left", [0, 100, 10_000])
def test_a_damaged_state_is_refused(
    teacher: EmbeddingModel,
    calibration: Calibration,
    corpus: TokenCorpus,
    tmp_path: Path,
    left: int,
) -> None:
    student = Student(teacher, calibration, StudentPlan())
    Trainer(teacher, student, TrainingCorpora(windows=corpus), PLAN, tmp_path).save()
    os.truncate(tmp_path / STATE_FILE, left)
    with pytest.raises(CheckpointError, match=r"state\.pt is damaged.* train into another folder"):
        Trainer(teacher, student, TrainingCorpora(windows=corpus), PLAN, tmp_path)


def test_what_was_learned_is_written_and_read_back(
    teacher: EmbeddingModel, calibration: Calibration, corpus: TokenCorpus, tmp_path: Path
) -> None:
    student = Student(teacher, calibration, StudentPlan())
    Trainer(teacher, student, TrainingCorpora(windows=corpus), PLAN, tmp_path / "run").run()
    learned = student.calibration()
    write_calibration(tmp_path / FILE_NAME, learned)
    read = read_calibration(tmp_path / FILE_NAME, teacher.checkpoint.sha256)
    assert read.sha256 == learned.sha256 != calibration.sha256
    batch = a_batch(corpus)
    with torch.no_grad():
        found = teacher.with_calibration(read).encoder(batch.ids, batch.bounds)
        expected = student.encoder()(batch.ids, batch.bounds)
        softmax = teacher.with_calibration(read).with_attention("softmax")
        published = teacher.encoder(batch.ids, batch.bounds)
        assert torch.equal(softmax.encoder(batch.ids, batch.bounds), published)
    assert torch.allclose(found, expected, atol=0.02)


def test_the_control_has_no_lln(
    teacher: EmbeddingModel, calibration: Calibration, corpus: TokenCorpus
) -> None:
    batch = a_batch(corpus)
    control = Student(teacher, calibration, StudentPlan(without_lln=True))
    diag = teacher.with_calibration(calibration).with_attention("block_diagonal")
    with torch.no_grad():
        found = control.encoder()(batch.ids, batch.bounds)
        assert torch.allclose(found, diag.encoder(batch.ids, batch.bounds), atol=1e-5)


def test_diverging_rates_are_an_error(
    teacher: EmbeddingModel, calibration: Calibration, corpus: TokenCorpus, tmp_path: Path
) -> None:
    student = Student(teacher, calibration, StudentPlan())
    with torch.no_grad():
        student.tensors["alpha"].fill_(torch.inf)
    with pytest.raises((CheckpointError, ValueError), match=r"loss of step 0|must be finite"):
        Trainer(teacher, student, TrainingCorpora(windows=corpus), PLAN, tmp_path).run()


def test_a_gradient_that_is_no_number_changes_nothing(
    teacher: EmbeddingModel, calibration: Calibration, corpus: TokenCorpus, tmp_path: Path
) -> None:
    student = Student(teacher, calibration, StudentPlan())
    alpha = student.tensors["alpha"]
    alpha.register_hook(lambda gradient: gradient * torch.nan)  # type: ignore[no-untyped-call]
    before = dict(trained(student))
    with pytest.raises(CheckpointError, match="the gradient of step 0 is nan") as caught:
        Trainer(teacher, student, TrainingCorpora(windows=corpus), PLAN, tmp_path).run()
    assert caught.value.code == "training_diverged"
    assert "into another folder" in str(caught.value)
    for name, tensor in trained(student):
        assert torch.equal(tensor, before[name]), name


@pytest.mark.long
def test_distilling_into_a_folder(
    write_checkpoint: WriteCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As usual.
    monkeypatch.setattr(trainer, "_WATCHED_TOKENS", 1_024)
    monkeypatch.setattr(distill, "write_curves", write_curves)
    folder = write_checkpoint("bert")
    documents = [Document(str(n), "", text) for n, text in enumerate(built_in_texts()[:20])]
    plan = DistillPlan(
        calibration=CalibrationPlan(block_size=16, sample_tokens=48, num_samples=4), training=PLAN
    )
    out = distill_model(str(folder), tmp_path / "out", {"manual": documents}, plan, config=CPU)
    made = load_model(str(out), config=CPU)
    assert made.info.attention == ("lln_diag", "lln_diag")
    assert made.calibration is not None
    assert made.calibration.gate is not None
    record = json.loads((out / "data.json").read_text())
    assert record["sources"]["manual"]["documents"] == 20
    assert len((out / "metrics.jsonl").read_text().splitlines()) == 12
    looks = [json.loads(line) for line in (out / "attention.jsonl").read_text().splitlines()]
    assert [look["step"] for look in looks] == [0, 12]
    assert all(len(look[name]) == 2 for look in looks for name in WATCHED)
    assert (out / "training.png").read_bytes().startswith(b"\x89PNG")
    assert not (out / "training").exists()


def test_continuing_from_a_trained_model(write_checkpoint: WriteCheckpoint, tmp_path: Path) -> None:
    documents = {
        "manual": [Document(str(n), "", text) for n, text in enumerate(built_in_texts()[:20])]
    }
    one_step = TrainingPlan(stages=(replace(STATES, steps=1, rates={"maps": 0.0}),))
    plan = DistillPlan(
        calibration=CalibrationPlan(block_size=16, sample_tokens=48, num_samples=4),
        training=PLAN,
    )
    begun = str(write_checkpoint("bert"))
    further = replace(
        plan, continue_training=True, training=one_step, calibration=CalibrationPlan()
    )
    with pytest.raises(InvalidInput, match="never adapted"):
        distill_model(begun, tmp_path / "never", documents, further, config=CPU)
    first = distill_model(begun, tmp_path / "first", documents, plan, config=CPU)
    then = distill_model(str(first), tmp_path / "then", documents, further, config=CPU)
    learned, kept = (load_model(str(folder), config=CPU).calibration for folder in (first, then))
    assert learned is not None
    assert kept is not None
    assert kept.block_size == learned.block_size == 16
    for name in ("alpha", "mix", "gate", "key_map"):  # rates of 0 leave them where they were
        torch.testing.assert_close(getattr(kept, name), getattr(learned, name))
    assert learned.adapted
    for name, tensor in learned.adapted.items():
        torch.testing.assert_close(kept.adapted[name], tensor)


def test_half_the_strength_is_half_the_way(
    teacher: EmbeddingModel, calibration: Calibration
) -> None:
    student = Student(teacher, calibration, StudentPlan())
    with torch.no_grad():
        for tensor in student.tensors.values():
            tensor += 1.0
    half, whole = student.calibration(0.5), student.calibration()
    torch.testing.assert_close(half.alpha, calibration.alpha + 0.5)
    torch.testing.assert_close(whole.alpha, calibration.alpha + 1.0)
    assert half.key_map is not None
    torch.testing.assert_close(half.key_map, (torch.eye(16) + 0.5).expand_as(half.key_map))
    torch.testing.assert_close(torch.logit(half.mix), torch.logit(whole.mix) - 0.5)


PAIRS = Stage(
    kind="pairs",
    steps=20,
    lengths=(96,),
    batch_tokens=800,
    rates={"scalars": 2e-2, "maps": 2e-2, "encoder": 2e-3},
    passage_share=0.0,
    fidelity_share=0.0,
)


@pytest.fixture
def pairs(teacher: EmbeddingModel) -> PairCorpus:
    texts = [text for text in built_in_texts() if len(text) > 900][:6]
    documents = [Document(str(n), "", text[200:], text[:200]) for n, text in enumerate(texts)]
    return PairCorpus({"manual": documents}, teacher.tokenizer)


@pytest.mark.long
def test_pairs_are_learned(
    teacher: EmbeddingModel,
    calibration: Calibration,
    corpus: TokenCorpus,
    pairs: PairCorpus,
    tmp_path: Path,
) -> None:
    plan = TrainingPlan(stages=(PAIRS,), warmup=1, save_every=4)
    student = Student(teacher, calibration, StudentPlan())
    batches = [pairs.documents(96, 1600, np.random.default_rng(seed)) for seed in range(4)]

    def how_lost() -> float:
        lost = []
        for batch in batches:
            with torch.no_grad():
                queries, candidates = (
                    unit_vectors(
                        student.encoder()(one.ids, one.bounds), whole_texts(one.bounds), "mean"
                    )
                    for one in (batch.queries, batch.documents)
                )
            lost.append(float(retrieval_loss(queries, candidates)))
        return mean(lost)

    before = how_lost()
    training = Trainer(
        teacher, student, TrainingCorpora(windows=corpus, pairs=pairs), plan, tmp_path
    )
    assert len(list(training.steps())) == PAIRS.steps
    guessing = log(6)  # documents, which all vectors alike would come to
    assert how_lost() < 0.9 * min(before, guessing)
    saved = torch.load(tmp_path / STATE_FILE, weights_only=True)
    # Documents of earlier steps, which later queries must tell from their own.
    assert len(saved["memory"]["0"][0]) > PAIRS.batch_tokens // 96


def test_steps_in_bfloat16_are_those_of_float32_but_for_rounding(
    teacher: EmbeddingModel,
    calibration: Calibration,
    corpus: TokenCorpus,
    pairs: PairCorpus,
    tmp_path: Path,
) -> None:
    stage = replace(PAIRS, steps=3)
    precisions: tuple[Precision, ...] = ("float32", "bfloat16")
    losses, learned = [], []
    for precision in precisions:
        plan = TrainingPlan(stages=(stage,), warmup=1, precision=precision)
        student = Student(teacher, calibration, StudentPlan())
        corpora = TrainingCorpora(windows=corpus, pairs=pairs)
        training = Trainer(teacher, student, corpora, plan, tmp_path / precision)
        losses.append([report.loss for report in training.steps()])
        learned.append(torch.cat([tensor.flatten() for _, tensor in trained(student)]))
    assert losses[1] == pytest.approx(losses[0], rel=0.02)
    assert losses[1] != losses[0]
    begun = torch.cat(
        [x.flatten() for _, x in trained(Student(teacher, calibration, StudentPlan()))]
    )
    exact, narrow = (one - begun for one in learned)
    assert torch.cosine_similarity(exact, narrow, dim=0) > 0.9


@pytest.mark.parametrize("kind", ["pairs", "chunks", "questions"])
def test_some_kinds_need_documents(
    kind: StageKind,
    teacher: EmbeddingModel,
    calibration: Calibration,
    corpus: TokenCorpus,
    tmp_path: Path,
) -> None:
    student = Student(teacher, calibration, StudentPlan())
    plan = replace(PLAN, stages=(replace(STATES, kind=kind),))
    with pytest.raises(InvalidInput, match=f"a stage of {kind} needs documents") as error:
        Trainer(teacher, student, TrainingCorpora(windows=corpus), plan, tmp_path)
    assert error.value.code == f"no_{kind}"


def test_an_encoder_that_no_stage_trains_is_not_written(
    write_checkpoint: WriteCheckpoint, tmp_path: Path
) -> None:
    documents = [Document(str(n), "", text) for n, text in enumerate(built_in_texts()[:20])]
    scalars = replace(STATES, rates={"scalars": 1e-2})
    plan = DistillPlan(
        calibration=CalibrationPlan(block_size=16, sample_tokens=48, num_samples=4),
        training=replace(PLAN, stages=(scalars,)),
    )
    out = distill_model(
        str(write_checkpoint("bert")), tmp_path / "out", {"manual": documents}, plan, config=CPU
    )
    made = load_model(str(out), config=CPU)
    assert made.calibration is not None
    assert not made.calibration.adapted


def test_a_folder_of_plain_short_texts_can_be_trained_on(
    write_checkpoint: WriteCheckpoint, tmp_path: Path
) -> None:
    """With fewer steps of the default recipe."""
    documents = [Document(str(n), "", text[:2500]) for n, text in enumerate(built_in_texts()[:40])]
    stages = tuple(replace(stage, steps=2, batch_tokens=4096) for stage in load_recipe("lln"))
    plan = DistillPlan(
        calibration=CalibrationPlan(block_size=16, sample_tokens=48, num_samples=4),
        training=TrainingPlan(stages=stages),
    )
    out = distill_model(
        str(write_checkpoint("bert")), tmp_path / "out", {"mine": documents}, plan, config=CPU
    )
    steps = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert len(steps) == 2
    share = stages[0].fidelity_share
    assert all(
        step["loss"] == pytest.approx(step["found"] + share * step["kept"]) for step in steps
    )


def test_curves_are_smoothed() -> None:
    assert smoothed([4, 2, 0, 0], over=2) == [4, 3, 1, 0]


def test_distilling_rejects_a_folder_in_use_and_empty_data(
    write_checkpoint: WriteCheckpoint, tmp_path: Path
) -> None:
    folder = str(write_checkpoint("bert"))
    with pytest.raises(InvalidInput, match="nothing to train on"):
        distill_model(folder, tmp_path / "new", {"none": []}, DistillPlan(), config=CPU)
    (tmp_path / "a file").touch()
    with pytest.raises(InvalidInput, match="not empty"):
        distill_model(folder, tmp_path, {}, DistillPlan(), config=CPU)
