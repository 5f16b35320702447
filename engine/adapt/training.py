"""Training a student: stages of growing length, resumable at any step.

A step depends on the seed, its number and the tensors alone, so a run that was interrupted and
resumed ends where an uninterrupted one would.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from engine.adapt.batches import Batch, TokenCorpus
from engine.adapt.objective import (
    LossWeights,
    attention_distance,
    contrast,
    distance,
    targets_of,
    unit_means,
)
from engine.adapt.student import Part, Student
from engine.errors import CheckpointError, InvalidInput
from engine.model.embedding_model import EmbeddingModel

StageKind: TypeAlias = Literal["attention", "states", "contrast"]

METRICS_FILE = "metrics.jsonl"
STATE_FILE = "state.pt"


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Steps of one kind. Each draws one of the lengths and fills the batch with such windows."""

    kind: StageKind
    steps: int
    lengths: tuple[int, ...]
    batch_tokens: int
    rates: dict[Part, float]
    """Learning rates at their highest; parts left out stay as they are."""

    query_tokens: int = 96
    """For "contrast": the stretch that is taken out of a document and must find it."""


_SCALARS_ONLY: dict[Part, float] = {"scalars": 1e-2}
_GENTLE: dict[Part, float] = {"scalars": 3e-3, "maps": 1e-3, "encoder": 3e-5}
_LONG: dict[Part, float] = {"scalars": 1e-3, "maps": 5e-4, "encoder": 2e-5}

DEFAULT_STAGES: tuple[Stage, ...] = (
    Stage(
        kind="attention",
        steps=300,
        lengths=(512, 1024),
        batch_tokens=32_768,
        rates=_SCALARS_ONLY | {"maps": 3e-3},
    ),
    Stage(kind="states", steps=1500, lengths=(384, 512, 1024), batch_tokens=65_536, rates=_GENTLE),
    Stage(
        kind="states",
        steps=800,
        lengths=(512, 2048, 8192, 16_384),
        batch_tokens=131_072,
        rates=_LONG,
    ),
    Stage(
        kind="contrast", steps=600, lengths=(1024, 2048, 4096), batch_tokens=262_144, rates=_LONG
    ),
)


def stages_from(items: object) -> tuple[Stage, ...]:
    """Stages from JSON: a list of objects with a stage's fields."""
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise InvalidInput("stages must be a list of objects", code="invalid_stages")
    known = {field.name for field in fields(Stage)}
    for item in items:
        if unknown := set(item) - known:
            raise InvalidInput(
                f"a stage has no {', '.join(sorted(unknown))}; it has {', '.join(sorted(known))}",
                code="invalid_stages",
                limit=", ".join(sorted(known)),
                actual=", ".join(sorted(unknown)),
            )
    try:
        return tuple(Stage(**item | {"lengths": tuple(item["lengths"])}) for item in items)
    except (KeyError, TypeError) as error:
        raise InvalidInput(f"a stage is incomplete: {error}", code="invalid_stages") from None


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    stages: tuple[Stage, ...] = DEFAULT_STAGES
    loss: LossWeights = field(default_factory=LossWeights)
    teacher_window: int = 512
    fidelity_share: float = 1.0  # of the distance to the teacher, beside the contrast
    warmup: int = 50
    clip: float = 1.0
    seed: int = 0
    save_every: int = 100

    def __post_init__(self) -> None:
        if not self.stages:
            raise InvalidInput("a training plan needs a stage", param="stages", limit=1, actual=0)
        for stage in self.stages:
            shortest = min(stage.lengths)
            if stage.batch_tokens < max(stage.lengths):
                raise InvalidInput(
                    f"a batch of {stage.batch_tokens} tokens holds no window of "
                    f"{max(stage.lengths)}",
                    param="batch_tokens",
                    limit=max(stage.lengths),
                    actual=stage.batch_tokens,
                )
            if stage.kind == "contrast" and shortest < 2 * stage.query_tokens:
                raise InvalidInput(
                    f"a query of {stage.query_tokens} tokens is more than half of {shortest}",
                    param="query_tokens",
                    limit=shortest // 2,
                    actual=stage.query_tokens,
                )

    @property
    def num_steps(self) -> int:
        return sum(stage.steps for stage in self.stages)

    def at(self, step: int) -> tuple[Stage, float]:
        """The stage of a step, and how much of its rates it takes: up, then a cosine down."""
        for stage in self.stages:
            if step < stage.steps:
                rise = min(1.0, (step + 1) / max(min(self.warmup, stage.steps), 1))
                return stage, rise * 0.5 * (1 + math.cos(math.pi * step / stage.steps))
            step -= stage.steps
        raise IndexError(step)


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """One line of the metrics file."""

    step: int
    stage: StageKind
    length: int
    tokens: int
    loss: float
    seconds: float


class Training:
    """A run in a folder of its own, which holds its metrics and where it stands."""

    def __init__(
        self,
        teacher: EmbeddingModel,
        student: Student,
        corpus: TokenCorpus,
        plan: TrainingPlan,
        folder: Path,
    ) -> None:
        self._teacher = teacher.encoder
        self._student = student
        self._corpus = corpus
        self._plan = plan
        self._folder = folder
        self._optimizer = torch.optim.AdamW(
            [{"params": student.of_part(part), "part": part} for part in _parts(student)],
            weight_decay=0.0,
            betas=(0.9, 0.98),
        )
        self.step = 0
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / STATE_FILE).exists():
            self._resume()

    def run(self, progress: Callable[[StepReport, int], None] | None = None) -> None:
        """All steps that are left."""
        for report in self.reports():
            self._write(report)
            if progress is not None:
                progress(report, self._plan.num_steps)
        self.save()

    def reports(self) -> Iterator[StepReport]:
        while self.step < self._plan.num_steps:
            yield self._take_step()
            if self.step % self._plan.save_every == 0:
                self.save()

    def save(self) -> None:
        """Where the run stands; written beside the old file first, so that one is always whole."""
        state = {
            "step": self.step,
            "tensors": dict(self._student.tensors),
            "optimizer": self._optimizer.state_dict(),
            "plan": _described(self._plan),
        }
        unfinished = self._folder / f"{STATE_FILE}.new"
        torch.save(state, unfinished)
        os.replace(unfinished, self._folder / STATE_FILE)

    def _take_step(self) -> StepReport:
        started_at = perf_counter()
        stage, rise = self._plan.at(self.step)
        generator = np.random.default_rng([self._plan.seed, self.step])
        length = int(generator.choice(stage.lengths))
        batch = self._corpus.batch(length, stage.batch_tokens // length, generator)
        for group in self._optimizer.param_groups:
            group["lr"] = rise * stage.rates.get(group["part"], 0.0)
        self._optimizer.zero_grad()
        loss = self._loss(stage, batch, generator)
        if not bool(torch.isfinite(loss)):
            raise CheckpointError(
                f"the loss of step {self.step} is {float(loss)}; lower the rates and resume",
                code="training_diverged",
                param="rates",
                actual=float(loss),
            )
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self._student.tensors.values(), self._plan.clip)
        self._optimizer.step()
        report = StepReport(
            step=self.step,
            stage=stage.kind,
            length=length,
            tokens=len(batch.ids),
            loss=float(loss.detach()),
            seconds=perf_counter() - started_at,
        )
        self.step += 1
        return report

    def _loss(self, stage: Stage, batch: Batch, generator: np.random.Generator) -> Tensor:
        student = self._student.encoder()
        if stage.kind == "attention":
            return attention_distance(student, self._teacher, batch)
        if stage.kind == "states":
            targets = targets_of(self._teacher, batch, self._plan.teacher_window)
            return distance(student, batch, targets, self._plan.loss)
        queries, documents = cut_queries(batch, stage.query_tokens, generator)
        found = unit_means(student(queries.ids.to(student.device), queries.bounds), queries.spans)
        read = unit_means(
            student(documents.ids.to(student.device), documents.bounds), documents.spans
        )
        targets = targets_of(self._teacher, documents, self._plan.teacher_window)
        fidelity = (1 - (read * targets.vectors).sum(-1)).mean()
        return (
            contrast(found, read) + self._plan.fidelity_share * self._plan.loss.vectors * fidelity
        )

    def _write(self, report: StepReport) -> None:
        with (self._folder / METRICS_FILE).open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(report)) + "\n")

    def _resume(self) -> None:
        path = self._folder / STATE_FILE
        state: dict[str, Any] = torch.load(
            path, map_location=self._teacher.device, weights_only=True
        )
        if state["plan"] != _described(self._plan):
            raise InvalidInput(
                f"{self._folder} holds a run by another plan; resume with the same one, "
                "or train into another folder",
                code="other_plan",
                param="out",
            )
        self._student.load(state["tensors"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]
        _keep_lines(self._folder / METRICS_FILE, self.step)


def cut_queries(batch: Batch, size: int, generator: np.random.Generator) -> tuple[Batch, Batch]:
    """A stretch taken out of each text, between the text's own special tokens, and the rest."""
    queries: list[Tensor] = []
    rests: list[Tensor] = []
    for first, end in batch.spans:
        start = int(generator.integers(first + 1, end - 1 - size))
        ids, stretch = batch.ids, slice(start, start + size)
        queries += [ids[first : first + 1], ids[stretch], ids[end - 1 : end]]
        rests += [ids[first:start], ids[start + size : end]]
    length = batch.bounds[1] - size
    count = len(batch.spans)
    return (
        Batch(torch.cat(queries), list(range(0, count * (size + 2) + 1, size + 2))),
        Batch(torch.cat(rests), list(range(0, count * length + 1, length))),
    )


def _parts(student: Student) -> Sequence[Part]:
    parts: tuple[Part, ...] = ("scalars", "maps", "encoder")
    return [part for part in parts if student.of_part(part)]


def _described(plan: TrainingPlan) -> str:
    return json.dumps(asdict(plan), sort_keys=True)


def _keep_lines(path: Path, count: int) -> None:
    """Steps after the last saved one will be taken, and told of, again."""
    if path.exists():
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        path.write_text("".join(lines[:count]), encoding="utf-8")
