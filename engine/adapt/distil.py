"""From a softmax model and real documents to a trained LLN+Diag model in a folder of its own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from engine.adapt.account import account_of, write_account
from engine.adapt.batches import TokenCorpus
from engine.adapt.calibrate import CalibrationPlan, calibrate
from engine.adapt.convert import copy_model, load_adapted
from engine.adapt.curves import write_curves
from engine.adapt.documents import (
    Document,
    digest_in_order,
    fingerprint,
    held_out,
    texts_of,
    training_parts,
)
from engine.adapt.lessons import window_of
from engine.adapt.new_folder import publish, workplace, write_whole
from engine.adapt.pairs import PairCorpus
from engine.adapt.preflight import check_documents, check_gradients, check_lengths
from engine.adapt.stages import TrainingPlan
from engine.adapt.student import Student, StudentPlan
from engine.adapt.training import ATTENTION_FILE, METRICS_FILE, StepReport, Training
from engine.adapt.vectors import pooling_of
from engine.checkpoint.calibration import (
    FILE_NAME,
    Calibration,
    read_calibration,
    write_calibration,
)
from engine.config import EngineConfig
from engine.errors import InvalidInput
from engine.model.embedding_model import EmbeddingModel, load_model

_RUN = "training"
_DESCRIPTION = "begun.json"
_BUILT = "model"
_HELD_OUT_SHARE = 0.2
_CALIBRATION_TEXT = 4_000_000  # characters; more makes calibration slower and no better
_PIECE = 4096  # characters


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
    with workplace(out, _RUN, is_kept=_has_begun) as run:
        teacher = _teacher(model, plan, config)
        material = _material(teacher, training_parts(data, _HELD_OUT_SHARE), plan)
        _check_run(run, _described(teacher, material, plan))
        account = _account(teacher, data, material, plan)
        calibration = _begun_from(teacher, material.texts, plan, run)
        student = Student(teacher, calibration, _learns(plan))
        Training(teacher, student, material.windows, plan.training, run, material.pairs).run(
            progress
        )
        built = run / _BUILT
        copy_model(teacher.checkpoint.folder, built)
        write_calibration(built / FILE_NAME, student.calibration(plan.strength))
        for name in (METRICS_FILE, ATTENTION_FILE):
            shutil.copyfile(run / name, built / name)
        write_account(built, account)
        write_curves(built)
        publish(built, out)
    return out


def _teacher(model: str, plan: DistilPlan, config: EngineConfig) -> EmbeddingModel:
    """With what it has learned already where that is gone on from, and else without: a calibration
    beside it may be damaged, or made for other weights."""
    if plan.further:
        return load_adapted(model, config)[0].with_attention("softmax")
    return load_model(model, attention="softmax", config=config)


@dataclass(frozen=True)
class _Material:
    """What a run reads."""

    parts: Mapping[str, Sequence[Document]]
    windows: TokenCorpus
    pairs: PairCorpus | None

    @property
    def texts(self) -> list[str]:
        return texts_of(self.parts.values())


def _material(
    teacher: EmbeddingModel, parts: Mapping[str, Sequence[Document]], plan: DistilPlan
) -> _Material:
    """Read, and known to be of use to this plan."""
    texts = texts_of(parts.values())
    if not texts:
        raise InvalidInput("there is nothing to train on", code="no_documents", param="data")
    windows = TokenCorpus.of(texts, teacher.tokenizer)
    check_lengths(plan.training, windows, pooling_of(teacher), window_of(teacher, plan.training))
    asks = any(stage.kind == "pairs" for stage in plan.training.stages)
    pairs = PairCorpus(parts, teacher.tokenizer) if asks else None
    check_documents(plan.training, pairs)
    check_gradients(plan.training, _learns(plan), _block_size(teacher, plan), windows, pairs)
    return _Material(parts, windows, pairs)


def _learns(plan: DistilPlan) -> StudentPlan:
    return replace(plan.student, encoder=plan.student.encoder and plan.training.trains("encoder"))


def _block_size(teacher: EmbeddingModel, plan: DistilPlan) -> int:
    known = teacher.calibration if plan.further else None
    return plan.calibration.block_size if known is None else known.block_size


def _has_begun(run: Path) -> bool:
    """Once the numbers are found that it begins from, a run is worth going on with."""
    return (run / FILE_NAME).exists()


def _described(teacher: EmbeddingModel, material: _Material, plan: DistilPlan) -> dict[str, str]:
    """All that a run depends on but the training plan, which its saved state holds."""
    known = teacher.calibration if plan.further else None
    return {
        "weights": teacher.checkpoint.sha256,
        "documents": digest_in_order(material.parts.values()),
        "calibration": known.sha256 if known else json.dumps(asdict(plan.calibration)),
        "student": json.dumps(asdict(_learns(plan))),
    }


def _check_run(run: Path, described: Mapping[str, str]) -> None:
    """Goes on only with what the run began with, and writes that down where it begins."""
    path = run / _DESCRIPTION
    if not _has_begun(run):
        path.write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")
        return
    if not path.exists():
        raise _other_run(f"{run} holds a run that did not write down what it began with")
    begun = json.loads(path.read_text("utf-8"))
    if others := [name for name, value in described.items() if begun[name] != value]:
        raise _other_run(f"{run} holds a run that differs in its {' and '.join(others)}")


def _other_run(message: str) -> InvalidInput:
    return InvalidInput(
        f"{message}; resume it as it began, or train into another folder",
        code="other_run",
        param="out",
    )


def _begun_from(
    teacher: EmbeddingModel, texts: Sequence[str], plan: DistilPlan, run: Path
) -> Calibration:
    """Found once a run, since a resumed one must begin from the very same numbers."""
    path = run / FILE_NAME
    if not path.exists():
        known = teacher.calibration if plan.further else None
        if known is None:
            known = calibrate(teacher, list(_some(texts)), plan.calibration)
        write_whole(path, partial(write_calibration, calibration=known))
    return read_calibration(path, teacher.checkpoint.sha256)


def _some(texts: Sequence[str]) -> Iterator[str]:
    """Pieces from all over the data, about as much as calibration can use."""
    share = min(1.0, _CALIBRATION_TEXT / max(sum(map(len, texts)), 1))
    seen = taken = 0
    for text in texts:
        for start in range(0, len(text), _PIECE):
            piece = text[start : start + _PIECE]
            seen += len(piece)
            if taken < share * seen:
                taken += len(piece)
                yield piece


def _account(
    teacher: EmbeddingModel,
    data: Mapping[str, Sequence[Document]],
    material: _Material,
    plan: DistilPlan,
) -> dict[str, object]:
    account: dict[str, object] = {
        "tokens": material.windows.num_tokens,
        "held_out_share": _HELD_OUT_SHARE,
        "sources": {
            name: {
                "documents": len(documents),
                "documents_trained_on": len(material.parts[name]),
                "trained_on": fingerprint(material.parts[name]),
                "held_out": fingerprint(held_out(documents, _HELD_OUT_SHARE)),
            }
            for name, documents in data.items()
        },
    }
    return account | ({"before": account_of(teacher)} if plan.further else {})
