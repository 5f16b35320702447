"""Training on a GPU: finite losses, the CPU's first loss and gradients, and runs that resume."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple, get_args

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.checkpoint.calibration import Calibration
from engine.model.embedding_model import EmbeddingModel, load_model
from engine.training import trainer
from engine.training.calibrate import CalibrationPlan, calibrate
from engine.training.convert import built_in_texts, load_adapted
from engine.training.data import Document
from engine.training.distill import DistillPlan, distill_model
from engine.training.recipe import Stage, StageKind, TrainingPlan, load_recipe
from engine.training.student import Part, Student, StudentPlan, part_of
from engine.training.trainer import StepReport, Trainer
from engine.training.training_corpora import TrainingCorpora
from engine.types import Precision
from tests.gpu.device import DEVICE, MARKS, config

pytestmark = MARKS

STEPS = 3
LENGTHS, BATCH_TOKENS = ((768, 1024), 4096) if DEVICE != "cpu" else ((544,), 1100)
"""More than a block, so that LLN has a share. A CPU takes seconds for a step."""


@pytest.fixture(autouse=True)
def little_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measuring attention on the usual text takes longer than the few steps of a test's run."""
    monkeypatch.setattr(trainer, "_WATCHED_TOKENS", 64)


@cache
def documents() -> tuple[Document, ...]:
    """Of some 1,500 tokens and more, half of them titled."""
    texts = built_in_texts()
    bodies = ["\n\n".join(texts[at : at + 4]) for at in range(0, len(texts) - 4, 4)]
    long = [body for body in bodies if len(body) > 8_000][:8]
    return tuple(
        Document(str(n), f"Page {n} of the manual" if n % 2 else "", body, f"What is on page {n}?")
        for n, body in enumerate(long)
    )


def stage_of(kind: StageKind) -> Stage:
    """The recipe's own, with shorter documents and fewer of them."""
    match kind:
        case "chunks":
            (stage,) = load_recipe("passages")
            return replace(
                stage, steps=STEPS, lengths=LENGTHS, batch_tokens=BATCH_TOKENS, shortest=LENGTHS[0]
            )
        case "pairs":
            (stage,) = load_recipe("documents")
            return replace(
                stage,
                steps=STEPS,
                lengths=LENGTHS,
                batch_tokens=BATCH_TOKENS,
                shortest=LENGTHS[0],
                stretches=2,
            )
        case "questions":
            _, stage = load_recipe("questions")
            return replace(
                stage, steps=STEPS, lengths=LENGTHS, batch_tokens=BATCH_TOKENS, shortest=LENGTHS[0]
            )
        case _:
            rates: dict[Part, float] = {"scalars": 1e-3, "maps": 5e-4, "encoder": 3e-5}
            return Stage(
                kind=kind, steps=2, lengths=LENGTHS[:1], batch_tokens=BATCH_TOKENS, rates=rates
            )


@cache
def teacher_on(device: str) -> tuple[EmbeddingModel, Calibration]:
    adapted, known = load_adapted("documents", config(device))
    return adapted.with_attention("softmax"), known


@cache
def corpora_on(device: str) -> TrainingCorpora:
    tokenizer = teacher_on(device)[0].tokenizer
    texts = [one.body for one in documents()]
    kinds = get_args(StageKind)
    return TrainingCorpora.of({"manual": documents()}, texts, tokenizer, kinds)


class Run(NamedTuple):
    student: Student
    trainer: Trainer


def run_of(
    folder: Path,
    device: str,
    kind: StageKind,
    precision: Precision = "float32",
    student: StudentPlan = StudentPlan(),  # noqa: B008 - frozen
) -> Run:
    teacher, known = teacher_on(device)
    learner = Student(teacher, known, student)
    plan = TrainingPlan(stages=(stage_of(kind),), warmup=1, precision=precision, save_every=2)
    return Run(learner, Trainer(teacher, learner, corpora_on(device), plan, folder))


def learned(run: Run) -> list[StepReport]:
    reports = list(run.trainer.steps())
    for report in reports:
        assert np.isfinite(report.loss), f"the loss of step {report.step} is {report.loss}"
    for name, tensor in run.student.tensors.items():
        assert bool(torch.isfinite(tensor).all()), f"{name} is not finite"
    return reports


PLANS = {
    "all": StudentPlan(),
    "control": StudentPlan(without_lln=True),
    "LLN alone": StudentPlan(encoder=False),
}


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("who", list(PLANS))
def test_chunks_are_learned(who: str, precision: Precision, tmp_path: Path) -> None:
    run = run_of(tmp_path, DEVICE, "chunks", precision, PLANS[who])
    before = {name: tensor.detach().clone() for name, tensor in run.student.tensors.items()}
    reports = learned(run)
    assert len(reports) == STEPS
    assert len(reports[0].parts) == (2 if who == "LLN alone" else 3)
    moved = {name for name, tensor in run.student.tensors.items() if tensor.ne(before[name]).any()}
    if who != "control":
        assert {"alpha", "beta", "share", "gate", "query_map", "key_map"} <= moved, moved
    if who != "LLN alone":
        assert {"positions", "layers.0.qkv.weight", "layers.5.ffn_norm.bias"} <= moved, moved


@pytest.mark.parametrize("kind", ["pairs", "questions", "attention", "states", "contrast"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_other_kinds_are_learned(kind: StageKind, precision: Precision, tmp_path: Path) -> None:
    learned(run_of(tmp_path, DEVICE, kind, precision))


class FirstStep(NamedTuple):
    report: StepReport
    gradients: dict[str, Tensor]


def first_step(
    folder: Path, device: str, kind: StageKind, precision: Precision, who: str
) -> FirstStep:
    run = run_of(folder, device, kind, precision, PLANS[who])
    report = next(run.trainer.steps())
    gradients = {
        name: tensor.grad.double().cpu()
        for name, tensor in run.student.tensors.items()
        if tensor.grad is not None
    }
    return FirstStep(report, gradients)


@cache
def first_on_the_cpu(folder: Path, kind: StageKind, who: str) -> FirstStep:
    return first_step(folder, "cpu", kind, "float32", who)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("kind", "who"), [("chunks", "all"), ("chunks", "control"), ("pairs", "all")]
)
def test_the_first_step_is_that_of_the_cpu(
    kind: StageKind,
    who: str,
    precision: Precision,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    found = first_step(tmp_path, DEVICE, kind, precision, who)
    shared = tmp_path_factory.getbasetemp() / f"first-{kind}-{who}"
    wanted = first_on_the_cpu(shared, kind, who)
    assert found.report.tokens == wanted.report.tokens, "another batch was drawn"
    close = 1e-3 if precision == "float32" else 5e-2
    for name, loss in wanted.report.parts.items():
        assert found.report.parts[name] == pytest.approx(loss, rel=close, abs=close / 10), name
    assert found.gradients.keys() == wanted.gradients.keys()
    least = 0.999 if precision == "float32" else 0.9
    parts: tuple[Part, ...] = get_args(Part)
    for part in parts:
        names = [name for name in wanted.gradients if part_of(name) == part]
        if not names:
            continue
        mine, theirs = (
            torch.cat([one.gradients[name].flatten() for name in names]) for one in (found, wanted)
        )
        if not bool(theirs.any()):
            assert not bool(mine.any()), f"{part} have a gradient on {DEVICE} alone"
            continue
        alike = float(torch.nn.functional.cosine_similarity(mine, theirs, dim=0))
        assert alike >= least, f"the gradients of {part} have a cosine of {alike:.5f} to the CPU's"
        ratio = float(mine.norm() / theirs.norm())
        assert ratio == pytest.approx(1, abs=1 - least), f"the gradients of {part} are {ratio} x"


@pytest.mark.parametrize("kind", ["chunks", "pairs"])
def test_a_run_resumes(kind: StageKind, tmp_path: Path) -> None:
    whole = run_of(tmp_path / "whole", DEVICE, kind)
    reports = learned(whole)
    stopped = run_of(tmp_path / "stopped", DEVICE, kind)
    for report in stopped.trainer.steps():
        if report.step == 1:
            stopped.trainer.save()
            break
    resumed = run_of(tmp_path / "stopped", DEVICE, kind)
    assert resumed.trainer.step == 2
    (last,) = learned(resumed)
    assert last.loss == pytest.approx(reports[-1].loss, rel=1e-3)
    for name, tensor in whole.student.tensors.items():
        assert tensor.device == resumed.student.tensors[name].device
        apart = float((resumed.student.tensors[name] - tensor).detach().abs().max())
        assert apart <= 2e-3, f"{name} is {apart} apart"


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_model_is_adapted_further(
    precision: Precision, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole of what `lln adapt --further --train` does, on the device's usual settings."""
    monkeypatch.setattr(trainer, "_WATCHED_TOKENS", 600)  # LLN has a share
    plan = DistillPlan(
        training=TrainingPlan(stages=(replace(stage_of("chunks"), steps=2),), precision=precision),
        continue_training=True,
    )
    data = {"manual": documents()}
    out = distill_model("documents", tmp_path / "out", data, plan, config=config(dtype="auto"))
    made = load_model(str(out), config=config())
    states = made.encoder(torch.tensor([101, 2023, 2003, 102], device=DEVICE), [0, 4])
    assert bool(torch.isfinite(states).all())


def test_calibration() -> None:
    plan = CalibrationPlan(block_size=256, sample_tokens=512, num_samples=4)
    found, wanted = (
        calibrate(
            load_model("all-MiniLM-L6-v2", attention="softmax", config=config(device)),
            built_in_texts()[:60],
            plan,
        )
        for device in (DEVICE, "cpu")
    )
    torch.testing.assert_close(found.key_shift, wanted.key_shift, rtol=1e-3, atol=1e-3)
    apart = float((found.mix - wanted.mix).abs().mean())
    assert apart < 0.02, f"mixes are {apart} apart on average"
