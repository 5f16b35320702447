"""Training a student: the stages of a plan, step by step, in a folder that a run can resume from.

A step depends only on the seed, its number and the tensors. A run that was interrupted and resumed
therefore ends where an uninterrupted one would.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from time import perf_counter
from types import MappingProxyType
from typing import Any, TypeAlias, get_args

import numpy as np
import torch
from torch import Tensor

from engine.analysis.layer_capture import capture_at_once, head_view
from engine.diagnostics import Effort, measure
from engine.diagnostics.readings import Floats
from engine.errors import CheckpointError, InvalidInput
from engine.model.embedding_model import EmbeddingModel
from engine.platform.files import named_in_errors
from engine.training.model_folder import write_whole
from engine.training.recipe import StageKind, TrainingPlan
from engine.training.student import Part, Student
from engine.training.token_corpus import Batch
from engine.training.training_corpora import TrainingCorpora
from engine.training.training_steps import StepLoss, TrainingSteps

METRICS_FILE = "metrics.jsonl"
ATTENTION_FILE = "attention.jsonl"
STATE_FILE = "state.pt"

LOSS_KEYS: Mapping[str, str] = MappingProxyType(
    {"retrieval": "found", "fidelity": "kept", "window": "held", "context": "told"}
)
"""The parts of a loss, and their keys in the metrics file."""

WATCHED = ("temperature", "entropy", "spectral_gap")
"""Instruments that measure the student's attention as it learns."""

LayerMeans: TypeAlias = Mapping[str, Sequence[float | None]]
"""The mean over each layer's heads, by instrument; None where no head has a reading."""

_WATCHED_TOKENS = 1024
_EFFORT = Effort(sampled_rows=64, max_exact_tokens=256, tolerance=0.05, max_basis=96)


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """One line of the metrics file."""

    step: int
    stage: StageKind
    length: int
    tokens: int
    loss: float
    seconds: float
    parts: Mapping[str, float]
    """What the loss is a weighted sum of, by the names in LOSS_KEYS, if it is one."""

    def as_line(self) -> dict[str, object]:
        line = asdict(self)
        parts = line.pop("parts")
        return line | {key: parts.get(name) for name, key in LOSS_KEYS.items()}


class Trainer:
    """A run in a folder of its own, which holds its metrics and the state to resume from."""

    def __init__(
        self,
        teacher: EmbeddingModel,
        student: Student,
        corpora: TrainingCorpora,
        plan: TrainingPlan,
        folder: Path,
    ) -> None:
        corpora.check_kinds(plan.stages)
        self._teacher = teacher
        self._device = teacher.encoder.device
        self._student = student
        self._steps = TrainingSteps(teacher, student, corpora, plan)
        self._plan = plan
        self._folder = folder
        windows = corpora.windows
        self._watched = windows.batch(
            min(_WATCHED_TOKENS, windows.longest), 1, np.random.default_rng(plan.seed)
        )
        parts: tuple[Part, ...] = get_args(Part)
        self._optimizer = torch.optim.AdamW(
            [
                {"params": tensors, "part": part}
                for part in parts
                if (tensors := student.of_part(part))
            ],
            weight_decay=0.0,
            betas=(0.9, 0.98),
        )
        self.step = 0
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / STATE_FILE).exists():
            self._resume()
        for name in (METRICS_FILE, ATTENTION_FILE):
            _drop_lines(folder / name, since=self.step)

    def run(self, progress: Callable[[StepReport, int], None] | None = None) -> None:
        """Take all remaining steps and save; `progress` gets each report and the total of steps."""
        for report in self.steps():
            if progress is not None:
                progress(report, self._plan.num_steps)
        self.save()

    def steps(self) -> Iterator[StepReport]:
        """Take the remaining steps; write metrics, measure attention and save on the way."""
        while self.step < self._plan.num_steps:
            if self.step % self._plan.watch_every == 0:
                self._watch_attention()
            report = self._take_step()
            self._append(METRICS_FILE, report.as_line())
            yield report
            if self.step % self._plan.save_every == 0:
                self.save()
        self._watch_attention()

    def save(self) -> None:
        """Write the state that a resumed run begins from."""
        state = {
            "step": self.step,
            "tensors": dict(self._student.tensors),
            "optimizer": self._optimizer.state_dict(),
            "memory": self._steps.memory.state(),
            "plan": _as_json(self._plan),
        }
        # In memory first: of a full disk, torch would report its own failure and not the system's.
        saved = BytesIO()
        torch.save(state, saved)
        write_whole(self._folder / STATE_FILE, lambda path: path.write_bytes(saved.getbuffer()))

    def _take_step(self) -> StepReport:
        started_at = perf_counter()
        stage, scale = self._plan.at(self.step)
        for group in self._optimizer.param_groups:
            group["lr"] = scale * stage.rates.get(group["part"], 0.0)
        self._optimizer.zero_grad()
        generator = np.random.default_rng([self._plan.seed, self.step])
        with torch.autocast(
            self._device.type, torch.bfloat16, enabled=self._plan.precision == "bfloat16"
        ):
            step = self._steps.loss(stage, generator)
        self._learn_from(step)
        report = StepReport(
            step=self.step,
            stage=stage.kind,
            length=step.length,
            tokens=step.tokens,
            loss=float(step.loss.detach()),
            seconds=perf_counter() - started_at,
            parts={name: float(part.detach()) for name, part in step.parts.items()},
        )
        self.step += 1
        return report

    def _learn_from(self, step: StepLoss) -> None:
        self._check_finite("loss", step.loss)
        # No gradient where LLN alone is trained and the texts are too short for it.
        if step.loss.requires_grad:
            step.loss.backward()  # type: ignore[no-untyped-call]
        tensors = self._student.tensors.values()
        # Clipping would spread one number that is not finite over all tensors.
        self._check_finite("gradient", torch.nn.utils.clip_grad_norm_(tensors, self._plan.clip))
        self._optimizer.step()

    def _check_finite(self, what: str, number: Tensor) -> None:
        """Call it before the tensors change, so that what is saved is always worth resuming."""
        if not bool(torch.isfinite(number)):
            raise CheckpointError(
                f"the {what} of step {self.step} is {float(number)}; lower the rates and "
                "train into another folder: a run resumes at its own",
                code="training_diverged",
                param="rates",
                actual=float(number),
            )

    def _watch_attention(self) -> None:
        student = self._teacher.with_calibration(self._student.calibration())
        means = _attention_means(student, self._watched)
        self._append(ATTENTION_FILE, {"step": self.step, **means})

    def _append(self, name: str, line: Mapping[str, object]) -> None:
        path = self._folder / name
        with named_in_errors(path), path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def _resume(self) -> None:
        state = _read_state(self._folder / STATE_FILE)
        if state["plan"] != _as_json(self._plan):
            raise InvalidInput(
                f"{self._folder} holds a run by another plan; resume with the same one, "
                "or train into another folder",
                code="other_plan",
                param="out",
            )
        self._student.load(state["tensors"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._steps.memory.load(state["memory"], self._device)
        self.step = state["step"]


@torch.no_grad()
def _attention_means(model: EmbeddingModel, text: Batch) -> LayerMeans:
    """Measure one text, which stays the same throughout a run."""
    found: dict[str, list[float | None]] = {name: [] for name in WATCHED}
    for step in capture_at_once(model.encoder, text.ids.to(model.encoder.device), text.bounds):
        # No instrument of heads reads a sliding window.
        slides = model.encoder.attention[step.index].kind == "sliding_window"
        readings = {} if slides else measure(head_view(model, step), WATCHED, _EFFORT)
        for name in WATCHED:
            found[name].append(_mean(readings[name].values) if name in readings else None)
    return found


def _mean(values: Floats) -> float | None:
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else None


def _as_json(plan: TrainingPlan) -> str:
    return json.dumps(asdict(plan), sort_keys=True)


def _read_state(path: Path) -> dict[str, Any]:
    saved = BytesIO(path.read_bytes())
    try:
        # To the host first: AdamW counts its steps there, and would wait for a GPU at each count.
        state: dict[str, Any] = torch.load(saved, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds, with advice that does not fit here
        raise CheckpointError(
            f"{path} is damaged, and the run cannot resume; remove {path.parent} to begin again, "
            "or train into another folder",
            code="damaged_state",
            actual=path.name,
        ) from error
    return state


def _drop_lines(path: Path, *, since: int) -> None:
    """Remove lines of steps that a resumed run takes again, and a line that was cut off."""
    if path.exists():
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        whole = [line for line in lines if line.endswith("\n")]
        text = "".join(line for line in whole if json.loads(line)["step"] < since)
        write_whole(path, lambda unfinished: unfinished.write_text(text, encoding="utf-8"))
