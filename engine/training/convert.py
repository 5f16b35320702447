"""Converting a softmax checkpoint: a new folder with its weights and a calibration."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from engine.checkpoint.calibration import FILE_NAME, Calibration, write_calibration
from engine.config import EngineConfig
from engine.errors import InvalidInput
from engine.model.embedding_model import EmbeddingModel, load_model
from engine.training.calibrate import CalibrationPlan, calibrate, check_pools_by_mean, other_windows
from engine.training.data import DATA_FILE, documents_in, no_text
from engine.training.encode import teacher_window, vectors_of, window_means
from engine.training.model_folder import publish, read_record, workplace, write_record
from engine.types import Context

_COPIED = (".json", ".txt", ".safetensors", ".model", ".md")
_WORKPLACE = ".unfinished"
_BUILT_FOLDER = "model"


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """The new model, and how near it is to its teacher on text that it was not calibrated on.

    Texts that are longer than the teacher reads are compared with the mean of its windows.
    """

    folder: Path
    calibration: str  # SHA-256
    tokens: int  # of each text that was compared
    mean_cosine: float
    least_cosine: float


def adapt_model(
    model: str,
    out: Path,
    texts: Sequence[str],
    plan: CalibrationPlan = CalibrationPlan(),  # noqa: B008 - frozen
    *,
    config: EngineConfig = EngineConfig(),  # noqa: B008 - frozen
    progress: Callable[[int, int], None] | None = None,
) -> Conversion:
    """Calibrate a model, given by name or folder, and write it with its calibration to `out`."""
    with workplace(out, _WORKPLACE) as place:
        built = place / _BUILT_FOLDER
        teacher = load_model(model, attention="softmax", config=for_training(config))
        others = other_windows(teacher, texts, plan.checked(teacher))
        calibration = calibrate(teacher, texts, plan, progress)
        copy_model(teacher.checkpoint.folder, built)
        write_calibration(built / FILE_NAME, calibration)
        window = teacher_window(teacher, plan.sample_tokens)
        wanted = window_means(teacher, others, window)
        cosines = (wanted * vectors_of(teacher.with_calibration(calibration), others)).sum(1)
        publish(built, out)
    return Conversion(
        folder=out,
        calibration=calibration.sha256,
        tokens=len(others[0]),
        mean_cosine=float(cosines.mean()),
        least_cosine=float(cosines.min()),
    )


def with_settings(
    model: str,
    out: Path,
    *,
    pooling_slope: float | None = None,
    chunk_context: Context | None = None,
    config: EngineConfig = EngineConfig(),  # noqa: B008 - frozen
) -> Path:
    """Write an adapted model with another pooling slope or another context of its own, and
    otherwise unchanged."""
    known, calibration = load_adapted(model, config)
    if pooling_slope is not None:
        check_pools_by_mean(known, pooling_slope)
        calibration = replace(calibration, pooling_slope=pooling_slope)
    if chunk_context is not None:
        calibration = replace(calibration, chunk_context=chunk_context)
    with workplace(out, _WORKPLACE) as place:
        built = place / _BUILT_FOLDER
        copy_model(known.checkpoint.folder, built)
        write_calibration(built / FILE_NAME, calibration)
        if record := read_record(known):
            write_record(built, record)
        publish(built, out)
    return out


def for_training(config: EngineConfig) -> EngineConfig:
    """Models that learn, and that are learned from, have float32 weights unless the caller chose
    otherwise. A GPU would usually read in bfloat16, which would round what training begins from."""
    return replace(config, dtype="float32") if config.dtype == "auto" else config


def load_adapted(model: str, config: EngineConfig) -> tuple[EmbeddingModel, Calibration]:
    """A model that was adapted before, and its calibration."""
    known = load_model(model, config=config)
    if known.calibration is None:
        raise InvalidInput(
            f"{model} was never adapted; `lln adapt {model} --out FOLDER` makes an LLN+Diag model "
            "of it",
            code="never_adapted",
            param="model",
            actual=model,
        )
    return known, known.calibration


def read_texts(paths: Sequence[Path]) -> list[str]:
    """The texts of these files and of these folders' text files; an error if there are none."""
    texts = [document.body for path in paths for document in documents_in(path)]
    if not texts:
        raise no_text(*paths, param="text")
    return texts


def built_in_texts() -> list[str]:
    """Real English that every Python brings along: its reference manual."""
    from pydoc_data.topics import topics

    return list(topics.values())


def copy_model(folder: Path, out: Path) -> None:
    """Copy a model, but no pickles or other formats of its weights and no records of trainings."""
    for file in list(_files_below(folder)):
        place = out / file.relative_to(folder)
        if file.suffix in _COPIED and file.name not in (FILE_NAME, DATA_FILE):
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, place)


def _files_below(folder: Path, above: frozenset[Path] = frozenset()) -> Iterator[Path]:
    """Files in this folder and below; links are followed unless they lead back up."""
    own = folder.resolve()
    if own in above:
        return
    for entry in sorted(folder.iterdir()):
        if entry.is_dir():
            yield from _files_below(entry, above | {own})
        elif entry.is_file():
            yield entry
