"""A softmax checkpoint copied to a new folder as an LLN+Diag model."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from engine.adapt.account import account_of, write_account
from engine.adapt.calibrate import CalibrationPlan, calibrate, check_pools_by_mean, other_windows
from engine.adapt.documents import DATA_FILE, documents_in, no_text
from engine.adapt.new_folder import publish, workplace
from engine.adapt.vectors import vectors_of, window_means
from engine.checkpoint.calibration import FILE_NAME, Calibration, write_calibration
from engine.config import EngineConfig
from engine.errors import InvalidInput
from engine.model.embedding_model import EmbeddingModel, load_model

_COPIED = (".json", ".txt", ".safetensors", ".model", ".md")
_UNFINISHED = ".unfinished"
_BUILT = "model"


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """What was made, and how close it comes to its teacher on text it was not calibrated on; where
    that is longer than the teacher reads, to the mean of the teacher's windows."""

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
    with workplace(out, _UNFINISHED) as place:
        built = place / _BUILT
        teacher = load_model(model, attention="softmax", config=config)
        others = other_windows(teacher, texts, plan.checked(teacher))
        calibration = calibrate(teacher, texts, plan, progress)
        copy_model(teacher.checkpoint.folder, built)
        write_calibration(built / FILE_NAME, calibration)
        wanted = window_means(teacher, others, plan.sample_tokens)
        cosines = (wanted * vectors_of(teacher.with_calibration(calibration), others)).sum(1)
        publish(built, out)
    return Conversion(
        folder=out,
        calibration=calibration.sha256,
        tokens=len(others[0]),
        mean_cosine=float(cosines.mean()),
        least_cosine=float(cosines.min()),
    )


def with_rise(
    model: str,
    out: Path,
    rise: float,
    *,
    config: EngineConfig = EngineConfig(),  # noqa: B008 - frozen
) -> Path:
    """Write an adapted model as it is, but for the rise of whole texts' vectors."""
    known, calibration = load_adapted(model, config)
    check_pools_by_mean(known, rise)
    with workplace(out, _UNFINISHED) as place:
        built = place / _BUILT
        copy_model(known.checkpoint.folder, built)
        write_calibration(built / FILE_NAME, replace(calibration, rise=rise))
        if account := account_of(known):
            write_account(built, account)
        publish(built, out)
    return out


def load_adapted(model: str, config: EngineConfig) -> tuple[EmbeddingModel, Calibration]:
    """A model that was adapted before, and its numbers."""
    known = load_model(model, config=config)
    if known.calibration is None:
        raise InvalidInput(
            f"{model} has no numbers to go on from: it was never adapted",
            code="never_adapted",
            param="further",
            actual=model,
        )
    return known, known.calibration


def read_texts(paths: Sequence[Path]) -> list[str]:
    """The texts of these files, and of the text files in these folders; some may hold none."""
    texts = [document.body for path in paths for document in documents_in(path)]
    if not texts:
        raise no_text(*paths, param="text")
    return texts


def built_in_texts() -> list[str]:
    """Real English that every Python brings along: the language's own reference manual."""
    from pydoc_data.topics import topics

    return list(topics.values())


def copy_model(folder: Path, out: Path) -> None:
    """What describes the model; pickles and other formats of the same weights stay behind, and so
    does what an earlier training says of itself."""
    for file in list(_files_below(folder)):
        place = out / file.relative_to(folder)
        if file.suffix in _COPIED and file.name not in (FILE_NAME, DATA_FILE):
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, place)


def _files_below(folder: Path, above: frozenset[Path] = frozenset()) -> Iterator[Path]:
    """Through links too, but none that leads back up."""
    own = folder.resolve()
    if own in above:
        return
    for entry in sorted(folder.iterdir()):
        if entry.is_dir():
            yield from _files_below(entry, above | {own})
        elif entry.is_file():
            yield entry
