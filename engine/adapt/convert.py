"""A softmax checkpoint copied to a new folder as an LLN+Diag model."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.adapt.calibrate import CalibrationPlan, calibrate, fidelity, sample_windows
from engine.checkpoint.calibration import FILE_NAME, write_calibration
from engine.config import EngineConfig
from engine.errors import InvalidInput
from engine.model.embedding_model import load_model

_COPIED = (".json", ".txt", ".safetensors", ".model", ".md")
_TEXT_FILES = (".txt", ".md", ".rst", ".html")


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """What was made, and how close it comes to its teacher on text it was not calibrated on."""

    folder: Path
    calibration: str  # SHA-256
    tokens: int  # in each window of text compared
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
    """Calibrate a model by name or folder, and write it with its calibration to `out`."""
    if out.exists() and any(out.iterdir()):
        raise InvalidInput(f"{out} is not empty", code="folder_not_empty", param="out")
    teacher = load_model(model, attention="softmax", config=config)
    calibration = calibrate(teacher, texts, plan, progress)
    copy_model(teacher.checkpoint.folder, out)
    write_calibration(out / FILE_NAME, calibration)
    ids, bounds = sample_windows(teacher, texts, plan, offset=1.0)
    cosines = fidelity(teacher, teacher.with_calibration(calibration), ids, bounds)
    return Conversion(
        folder=out,
        calibration=calibration.sha256,
        tokens=plan.sample_tokens,
        mean_cosine=float(cosines.mean()),
        least_cosine=float(cosines.min()),
    )


def read_texts(paths: Sequence[Path]) -> list[str]:
    """The texts of these files, and of the text files in these folders."""
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in _text_files(paths)]
    return [text for text in texts if text.strip()]


def built_in_texts() -> list[str]:
    """Real English that every Python brings along: the language's own reference manual."""
    from pydoc_data.topics import topics

    return list(topics.values())


def _text_files(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            yield from sorted(file for file in path.rglob("*") if file.suffix in _TEXT_FILES)
        else:
            yield path


def copy_model(folder: Path, out: Path) -> None:
    """What describes the model; pickles and other formats of the same weights stay behind."""
    for file in sorted(folder.rglob("*")):
        place = out / file.relative_to(folder)
        if file.is_file() and file.suffix in _COPIED and file.name != FILE_NAME:
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, place)
