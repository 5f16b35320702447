"""Distilling a softmax model into an LLN+Diag model: from a checkpoint and documents to a folder.

`distill_model` tells the whole story. A run lives in a folder inside the new model's and resumes
there after an interruption.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from engine.checkpoint.calibration import (
    FILE_NAME,
    Calibration,
    read_calibration,
    write_calibration,
)
from engine.checkpoint.folder import Pooling
from engine.checkpoint.json_files import read_object
from engine.config import EngineConfig
from engine.errors import InvalidInput
from engine.model.embedding_model import EmbeddingModel, load_model
from engine.platform.device import check_training_precision
from engine.training.calibrate import CalibrationPlan, calibrate
from engine.training.convert import copy_model, for_training, load_adapted
from engine.training.curves import write_curves
from engine.training.data import (
    Document,
    digest_in_order,
    fingerprint,
    held_out,
    texts_of,
    training_parts,
)
from engine.training.encode import pooling_of, teacher_window
from engine.training.model_folder import (
    TrainingRecord,
    publish,
    read_record,
    workplace,
    write_record,
    write_whole,
)
from engine.training.recipe import Stage, TrainingPlan
from engine.training.student import Student, StudentPlan
from engine.training.trainer import ATTENTION_FILE, METRICS_FILE, StepReport, Trainer
from engine.training.training_corpora import TrainingCorpora
from engine.training.training_steps import anchor_lengths
from engine.types import Context

_RUN_FOLDER = "training"
_DESCRIPTION = "begun.json"
_BUILT_FOLDER = "model"
_HELD_OUT_SHARE = 0.2
_CALIBRATION_CHARACTERS = 4_000_000  # more makes calibration slower and no better
_PIECE_CHARACTERS = 4096


@dataclass(frozen=True, kw_only=True)
class DistillPlan:
    calibration: CalibrationPlan = CalibrationPlan()  # noqa: RUF009 - frozen
    student: StudentPlan = StudentPlan()  # noqa: RUF009 - frozen
    training: TrainingPlan = TrainingPlan()  # noqa: RUF009 - frozen
    continue_training: bool = False
    """Continue from what an adapted model has learned, without calibrating again."""

    strength: float = 1.0
    """How far to go from the first numbers to the trained ones. Less stays nearer the teacher."""

    def context_after(self, before: Context) -> Context:
        """The model's own context: the one asked for, or what training teaches, or as before."""
        return self.calibration.chunk_context or self.training.taught_context or before


def distill_model(
    model: str,
    out: Path,
    data: Mapping[str, Sequence[Document]],
    plan: DistillPlan,
    *,
    config: EngineConfig,
    progress: Callable[[StepReport, int], None] | None = None,
) -> Path:
    """Train on documents, given by the name of their source, and write the model to `out`.

    Called again after an interruption, it resumes from the last saved step. A part of each source
    is held out; `data.json` identifies it by a hash.
    """
    with workplace(out, _RUN_FOLDER, is_kept=_has_begun) as folder:
        run = _prepare(model, data, plan, config)
        _check_plan(run)
        _check_same_run(folder, run)
        record = _training_record(data, run)
        student = Student(run.teacher, _first_calibration(folder, run), run.student)
        trainer = Trainer(run.teacher, student, run.corpora, plan.training, folder)
        trainer.run(progress)
        built = folder / _BUILT_FOLDER
        copy_model(run.teacher.checkpoint.folder, built)
        learned = student.calibration(plan.strength)
        context = plan.context_after(learned.chunk_context)
        write_calibration(built / FILE_NAME, replace(learned, chunk_context=context))
        for name in (METRICS_FILE, ATTENTION_FILE):
            shutil.copyfile(folder / name, built / name)
        write_record(built, record)
        write_curves(built)
        publish(built, out)
    return out


@dataclass(frozen=True, kw_only=True)
class _Run:
    """A plan, and the model and data that it reads."""

    plan: DistillPlan
    student: StudentPlan  # without the encoder if no stage trains it
    teacher: EmbeddingModel
    known: Calibration | None  # to continue from
    parts: Mapping[str, Sequence[Document]]  # of the data, to train on
    corpora: TrainingCorpora

    @property
    def block_size(self) -> int:
        return (self.known or self.plan.calibration).block_size


def _prepare(
    model: str, data: Mapping[str, Sequence[Document]], plan: DistillPlan, config: EngineConfig
) -> _Run:
    config = for_training(config)
    check_training_precision(config.device, plan.training.precision)
    # Without its calibration if that is not needed: it may be damaged, or of other weights.
    if plan.continue_training:
        adapted, known = load_adapted(model, config)
        teacher = adapted.with_attention("softmax")
    else:
        teacher, known = load_model(model, attention="softmax", config=config), None
    parts = training_parts(data, _HELD_OUT_SHARE)
    texts = texts_of(parts.values())
    if not texts:
        raise InvalidInput("there is nothing to train on", code="no_documents", param="data")
    kinds = {stage.kind for stage in plan.training.stages}
    trains_encoder = plan.student.encoder and plan.training.trains("encoder")
    return _Run(
        plan=plan,
        student=replace(plan.student, encoder=trains_encoder),
        teacher=teacher,
        known=known,
        parts=parts,
        corpora=TrainingCorpora.of(parts, texts, teacher.tokenizer, kinds),
    )


def _check_plan(run: _Run) -> None:
    """Reject a plan that is impossible or pointless before minutes are spent on it."""
    pooling = pooling_of(run.teacher)
    window = teacher_window(run.teacher, run.plan.training.teacher_window)
    for stage in run.plan.training.stages:
        _check_lengths(stage, run.corpora, pooling, window)
        own = run.corpora.of_kind(stage.kind)
        if own is not None:
            own.check_documents(stage.shortest)
    _check_gradients(run)


def _check_lengths(stage: Stage, corpora: TrainingCorpora, pooling: Pooling, window: int) -> None:
    windows = corpora.windows
    longest, shortest = max(stage.lengths), min(stage.lengths)
    if shortest <= windows.num_special:
        raise _unusable_length(
            f"a stage asks for {shortest} tokens, of which {windows.num_special} are special",
            limit=windows.num_special,
            actual=shortest,
        )
    # The other kinds take shorter documents too.
    if corpora.of_kind(stage.kind) is None and longest > windows.longest:
        raise _unusable_length(
            f"a stage asks for windows of {longest} tokens, and the longest document has "
            f"{windows.longest}",
            limit=windows.longest,
            actual=longest,
        )
    # Each window of a longer text has a first token of its own; none stands for the whole text.
    imitates_texts = stage.kind in ("states", "contrast") or (
        stage.kind == "pairs" and stage.held_share > 0
    )
    if pooling == "cls" and imitates_texts and longest > window:
        raise _unusable_length(
            "a model that pools by its first token has no vector to imitate beyond its window "
            f"of {window} tokens; a stage asks for {longest}",
            limit=window,
            actual=longest,
        )


def _unusable_length(message: str, *, limit: int, actual: int) -> InvalidInput:
    return InvalidInput(
        message, code="unusable_length", param="lengths", limit=limit, actual=actual
    )


def _check_gradients(run: _Run) -> None:
    """LLN has a share, and so a gradient, only in texts that are longer than a block."""
    stages = run.plan.training.stages
    if run.student.encoder and any(stage.kind != "attention" for stage in stages):
        return
    if run.student.without_lln:
        raise InvalidInput(
            "a control without LLN can train the encoder only, and no stage does",
            code="nothing_to_learn",
            param="control",
        )
    longest = max(_longest_text(stage, run) for stage in stages)
    if longest <= run.block_size:
        raise InvalidInput(
            f"nothing can be learned: LLN reads what lies beyond a block of {run.block_size} "
            f"tokens, and no text has more than {longest}; choose smaller blocks, longer documents "
            "or a recipe that trains the encoder",
            code="nothing_to_learn",
            param="block_size",
            limit=longest,
            actual=run.block_size,
        )


def _longest_text(stage: Stage, run: _Run) -> int:
    """The most tokens that a stage reads at once."""
    if stage.kind != "pairs":
        return run.corpora.longest(stage)
    anchors = anchor_lengths(min(run.plan.training.teacher_window, run.corpora.windows.longest))
    return max(run.corpora.longest(stage), *anchors)


def _has_begun(folder: Path) -> bool:
    """A run is worth resuming once it has the numbers that it begins from."""
    return (folder / FILE_NAME).exists()


def _check_same_run(folder: Path, run: _Run) -> None:
    """Resume only what began with the same model, data and plans; write them down at the start.

    The training plan is not among them: the saved state holds it.
    """
    described = {
        "weights": run.teacher.checkpoint.sha256,
        "documents": digest_in_order(run.parts.values()),
        "calibration": run.known.sha256 if run.known else json.dumps(asdict(run.plan.calibration)),
        "student": json.dumps(asdict(run.student)),
    }
    path = folder / _DESCRIPTION
    if not _has_begun(folder):
        text = json.dumps(described, indent=2) + "\n"
        write_whole(path, lambda unfinished: unfinished.write_text(text, encoding="utf-8"))
        return
    if not path.exists():
        raise _other_run(f"{folder} holds a run that did not write down what it began with")
    begun = read_object(path)
    if others := [name for name, value in described.items() if begun.get(name) != value]:
        raise _other_run(f"{folder} holds a run that differs in its {' and '.join(others)}")


def _other_run(message: str) -> InvalidInput:
    return InvalidInput(
        f"{message}; resume it as it began, or train into another folder",
        code="other_run",
        param="out",
    )


def _first_calibration(folder: Path, run: _Run) -> Calibration:
    """The numbers to begin from. They are written once: a resumed run must begin from the same."""
    path = folder / FILE_NAME
    if not path.exists():
        known = run.known
        if known is None:
            texts = list(_some(texts_of(run.parts.values())))
            known = calibrate(run.teacher, texts, run.plan.calibration)
        write_whole(path, partial(write_calibration, calibration=known))
    return read_calibration(path, run.teacher.checkpoint.sha256)


def _some(texts: Sequence[str]) -> Iterator[str]:
    """Pieces from all over the texts, about as many as calibration can use."""
    share = min(1.0, _CALIBRATION_CHARACTERS / max(sum(map(len, texts)), 1))
    seen = taken = 0
    for text in texts:
        for start in range(0, len(text), _PIECE_CHARACTERS):
            piece = text[start : start + _PIECE_CHARACTERS]
            seen += len(piece)
            if taken < share * seen:
                taken += len(piece)
                yield piece


def _training_record(data: Mapping[str, Sequence[Document]], run: _Run) -> TrainingRecord:
    record: dict[str, object] = {
        "tokens": run.corpora.windows.num_tokens,
        "held_out_share": _HELD_OUT_SHARE,
        "sources": {
            name: {
                "documents": len(documents),
                "documents_trained_on": len(run.parts[name]),
                "trained_on": fingerprint(run.parts[name]),
                "held_out": fingerprint(held_out(documents, _HELD_OUT_SHARE)),
            }
            for name, documents in data.items()
        },
    }
    if run.plan.continue_training:
        record["before"] = read_record(run.teacher)
    return record
