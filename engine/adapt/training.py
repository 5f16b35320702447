"""Training a student: stages of growing length, resumable at any step.

A step depends on the seed, its number and the tensors alone, so a run that was interrupted and
resumed ends where an uninterrupted one would.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from engine.adapt.batches import TokenCorpus
from engine.adapt.lessons import Lessons
from engine.adapt.new_folder import write_whole
from engine.adapt.pairs import PairCorpus
from engine.adapt.stages import StageKind, TrainingPlan
from engine.adapt.student import Part, Student
from engine.adapt.watch import attention_of
from engine.errors import CheckpointError, InvalidInput
from engine.model.embedding_model import EmbeddingModel

METRICS_FILE = "metrics.jsonl"
ATTENTION_FILE = "attention.jsonl"
STATE_FILE = "state.pt"
_WATCHED_TOKENS = 1024


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """One line of the metrics file."""

    step: int
    stage: StageKind
    length: int
    tokens: int
    loss: float
    seconds: float
    found: float | None = None
    """Of the loss: how badly queries find what they should, where the stage is about that."""

    kept: float | None = None
    """And how far from the teacher's the vectors are that should stay, before its share."""

    held: float | None = None
    """The same of whole documents and their windows, where they should stay near them."""


class Training:
    """A run in a folder of its own, which holds its metrics and where it stands."""

    def __init__(
        self,
        teacher: EmbeddingModel,
        student: Student,
        windows: TokenCorpus,
        plan: TrainingPlan,
        folder: Path,
        pairs: PairCorpus | None = None,
    ) -> None:
        if pairs is None and any(stage.kind == "pairs" for stage in plan.stages):
            raise InvalidInput(
                "a stage of pairs needs documents, not windows alone",
                code="no_pairs",
                param="data",
            )
        self._teacher = teacher
        self._device = teacher.encoder.device
        self._student = student
        self._lessons = Lessons(teacher, student, windows, pairs, plan)
        self._plan = plan
        self._folder = folder
        self._watched = windows.batch(
            min(_WATCHED_TOKENS, windows.longest), 1, np.random.default_rng(plan.seed)
        )
        self._optimizer = torch.optim.AdamW(
            [{"params": student.of_part(part), "part": part} for part in _parts(student)],
            weight_decay=0.0,
            betas=(0.9, 0.98),
        )
        self.step = 0
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / STATE_FILE).exists():
            self._resume()
        for name in (METRICS_FILE, ATTENTION_FILE):
            _keep_steps(folder / name, self.step)

    def run(self, progress: Callable[[StepReport, int], None] | None = None) -> None:
        """All steps that are left."""
        for report in self.reports():
            self._write(report)
            if progress is not None:
                progress(report, self._plan.num_steps)
        self.save()

    def reports(self) -> Iterator[StepReport]:
        while self.step < self._plan.num_steps:
            if self.step % self._plan.watch_every == 0:
                self._watch()
            yield self._take_step()
            if self.step % self._plan.save_every == 0:
                self.save()
        self._watch()

    def _watch(self) -> None:
        student = self._teacher.with_calibration(self._student.calibration())
        found = {"step": self.step, **attention_of(student, self._watched)}
        self._append(ATTENTION_FILE, found)

    def save(self) -> None:
        """Where the run stands."""
        state = {
            "step": self.step,
            "tensors": dict(self._student.tensors),
            "optimizer": self._optimizer.state_dict(),
            "memory": self._lessons.memory,
            "plan": _described(self._plan),
        }
        write_whole(self._folder / STATE_FILE, lambda path: torch.save(state, path))

    def _take_step(self) -> StepReport:
        started_at = perf_counter()
        stage, rise = self._plan.at(self.step)
        generator = np.random.default_rng([self._plan.seed, self.step])
        for group in self._optimizer.param_groups:
            group["lr"] = rise * stage.rates.get(group["part"], 0.0)
        self._optimizer.zero_grad()
        with torch.autocast(
            self._device.type, torch.bfloat16, enabled=self._plan.precision == "bfloat16"
        ):
            lesson = self._lessons.give(stage, generator)
        loss = lesson.loss
        if not bool(torch.isfinite(loss)):
            raise CheckpointError(
                f"the loss of step {self.step} is {float(loss)}; lower the rates and resume",
                code="training_diverged",
                param="rates",
                actual=float(loss),
            )
        if loss.requires_grad:  # LLN alone may learn, and have no share in texts this short
            loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self._student.tensors.values(), self._plan.clip)
        self._optimizer.step()
        report = StepReport(
            step=self.step,
            stage=stage.kind,
            length=lesson.length,
            tokens=lesson.tokens,
            loss=float(loss.detach()),
            seconds=perf_counter() - started_at,
            **{name: float(part.detach()) for name, part in lesson.parts.items()},
        )
        self.step += 1
        return report

    def _write(self, report: StepReport) -> None:
        self._append(METRICS_FILE, asdict(report))

    def _append(self, name: str, line: Mapping[str, object]) -> None:
        with (self._folder / name).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def _resume(self) -> None:
        path = self._folder / STATE_FILE
        state: dict[str, Any] = torch.load(path, map_location=self._device, weights_only=True)
        if state["plan"] != _described(self._plan):
            raise InvalidInput(
                f"{self._folder} holds a run by another plan; resume with the same one, "
                "or train into another folder",
                code="other_plan",
                param="out",
            )
        self._student.load(state["tensors"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._lessons.recall(state["memory"])
        self.step = state["step"]


def _parts(student: Student) -> Sequence[Part]:
    parts: tuple[Part, ...] = ("scalars", "maps", "encoder")
    return [part for part in parts if student.of_part(part)]


def _described(plan: TrainingPlan) -> str:
    return json.dumps(asdict(plan), sort_keys=True)


def _keep_steps(path: Path, before: int) -> None:
    """Steps after the last saved one will be taken, and told of, again: also one whose line was
    being written when the run was stopped."""
    if path.exists():
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        whole = [line for line in lines if line.endswith("\n")]
        kept = "".join(line for line in whole if json.loads(line)["step"] < before)
        write_whole(path, lambda unfinished: unfinished.write_text(kept, encoding="utf-8"))
