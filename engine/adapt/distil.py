"""From a softmax model and real documents to a trained LLN+Diag model in a folder of its own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from engine.adapt.batches import TokenCorpus
from engine.adapt.calibrate import CalibrationPlan, calibrate
from engine.adapt.convert import copy_model
from engine.adapt.curves import write_curves
from engine.adapt.documents import Document, fingerprint, for_training, held_out
from engine.adapt.pairs import PairCorpus
from engine.adapt.stages import TrainingPlan
from engine.adapt.student import Student, StudentPlan
from engine.adapt.training import ATTENTION_FILE, METRICS_FILE, StepReport, Training
from engine.checkpoint.calibration import (
    FILE_NAME,
    Calibration,
    read_calibration,
    write_calibration,
)
from engine.config import EngineConfig
from engine.errors import InvalidInput
from engine.model.embedding_model import EmbeddingModel, load_model

DATA_FILE = "data.json"
_RUN = "training"
_HELD_OUT_SHARE = 0.2
_CALIBRATION_TEXT = 4_000_000  # characters; more makes calibration slower and no better


@dataclass(frozen=True, kw_only=True)
class DistilPlan:
    calibration: CalibrationPlan = CalibrationPlan()  # noqa: RUF009 - frozen
    student: StudentPlan = StudentPlan()  # noqa: RUF009 - frozen
    training: TrainingPlan = TrainingPlan()  # noqa: RUF009 - frozen
    further: bool = False
    """Begin from what the model was trained to be before, and calibrate nothing."""

    strength: float = 1.0
    """How much of what was learned is kept: less stays nearer to the teacher."""


def distil_model(
    model: str,
    out: Path,
    data: Mapping[str, Sequence[Document]],
    plan: DistilPlan,
    *,
    config: EngineConfig,
    progress: Callable[[StepReport, int], None] | None = None,
) -> Path:
    """Train on the documents of `data`, by the name of where they come from, and write the model.

    The run lives in a folder inside `out`. Called again after an interruption, it goes on from
    the last saved step. A part of every corpus is held out; `data.json` says which by its hash.
    """
    run = out / _RUN
    if out.exists() and any(out.iterdir()) and not run.exists():
        raise InvalidInput(f"{out} is not empty", code="folder_not_empty", param="out")
    teacher = load_model(model, attention="softmax", config=config)
    texts = [document.body for part in data.values() for document in _training_part(part)]
    if not texts:
        raise InvalidInput("there is nothing to train on", code="no_documents", param="data")
    if plan.further and teacher.calibration is None:
        raise InvalidInput(
            f"{model} has no numbers to go on from: it was never adapted",
            code="never_adapted",
            param="further",
            actual=model,
        )
    pairs = _pairs(teacher, data, plan)
    run.mkdir(parents=True, exist_ok=True)
    calibration = _begun_from(teacher, texts, plan, run)
    learns = replace(plan.student, encoder=plan.student.encoder and plan.training.trains("encoder"))
    student = Student(teacher, calibration, learns)
    corpus = TokenCorpus.of(texts, teacher.tokenizer)
    _write_account(out, data, corpus)
    Training(teacher, student, corpus, plan.training, run, pairs).run(progress)
    copy_model(teacher.checkpoint.folder, out)
    write_calibration(out / FILE_NAME, student.calibration(plan.strength))
    for name in (METRICS_FILE, ATTENTION_FILE):
        shutil.move(run / name, out / name)
    shutil.rmtree(run)
    write_curves(out)
    return out


def _training_part(documents: Sequence[Document]) -> list[Document]:
    return for_training(documents, _HELD_OUT_SHARE)


def _pairs(
    teacher: EmbeddingModel, data: Mapping[str, Sequence[Document]], plan: DistilPlan
) -> PairCorpus | None:
    if not any(stage.kind == "pairs" for stage in plan.training.stages):
        return None
    parts = {name: _training_part(documents) for name, documents in data.items()}
    return PairCorpus(parts, teacher.tokenizer)


def _begun_from(
    teacher: EmbeddingModel, texts: Sequence[str], plan: DistilPlan, run: Path
) -> Calibration:
    """Found once a run, since a resumed one must begin from the very same numbers."""
    path = run / FILE_NAME
    if not path.exists():
        known = teacher.calibration if plan.further else None
        if known is None:
            known = calibrate(teacher, list(_some(texts)), plan.calibration)
        write_calibration(path, known)
    return read_calibration(path, teacher.checkpoint.sha256)


def _some(texts: Sequence[str]) -> Sequence[str]:
    """Texts from all over the data, not more than calibration can use."""
    total = sum(map(len, texts))
    every = max(1, total // _CALIBRATION_TEXT)
    return texts[::every]


def _write_account(out: Path, data: Mapping[str, Sequence[Document]], corpus: TokenCorpus) -> None:
    account = {
        "tokens": corpus.num_tokens,
        "held_out_share": _HELD_OUT_SHARE,
        "sources": {
            name: {
                "documents": len(documents),
                "trained_on": fingerprint(_training_part(documents)),
                "held_out": fingerprint(held_out(documents, _HELD_OUT_SHARE)),
            }
            for name, documents in data.items()
        },
    }
    (out / DATA_FILE).write_text(json.dumps(account, indent=2) + "\n", encoding="utf-8")
