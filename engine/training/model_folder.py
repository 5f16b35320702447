"""The folder of a new model: built in a workplace, published whole, with a record of its training.

A loader never sees a part of a model: the files that it looks for first are moved last.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

from engine.checkpoint.calibration import has_own_calibration, shipped_calibration
from engine.checkpoint.json_files import read_object
from engine.errors import CheckpointError, InvalidInput
from engine.model.embedding_model import EmbeddingModel
from engine.platform.files import named_in_errors, sync
from engine.platform.locks import AlreadyRunning, writers_lock
from engine.training.data import DATA_FILE

TrainingRecord: TypeAlias = Mapping[str, Any]
"""The content of data.json: what a model was trained on. "before" is the record of the training
that this one continued, or null if that is unknown. "averaged" has those of the models whose mean
this one is."""

MARK = ".lln-adapt"
"""This file marks a workplace as ours. A folder of the same name without it belongs to the user."""
_LOCK = "lock"
_MEANING = "lln adapt works in this folder, and removes it with all that it holds.\n"

_SOURCE_KEYS = {"trained_on", "held_out"}


@contextmanager
def workplace(
    out: Path, name: str, is_kept: Callable[[Path], bool] = lambda _: False
) -> Iterator[Path]:
    """A folder inside `out`, which must be empty or hold the workplace of a run that was stopped.

    It is inside `out` because that may be the only writable folder, or a disk of its own. It is
    removed at the end, and after a failure too unless `is_kept` says that a run can resume from it.
    Raises AlreadyRunning while another process works there.
    """
    place, is_new = out / name, not out.exists()
    if not is_new and any(out.iterdir()) and not (place / MARK).exists():
        raise InvalidInput(f"{out} is not empty", code="folder_not_empty", param="out")
    try:
        place.mkdir(parents=True, exist_ok=True)
        # Written each time, because a folder that exists may have become read-only.
        write_whole(place / MARK, lambda mark: mark.write_text(_MEANING, encoding="utf-8"))
        with writers_lock(place / _LOCK, str(out)), named_in_errors(out):
            yield place
            # Renamed first: a folder that is removed in part must not look like a run to resume.
            removed = place.rename(place.with_name(f"{place.name}.removed"))
            shutil.rmtree(removed)
    except AlreadyRunning:  # the place is that process's
        raise
    except BaseException:
        if not is_kept(place):
            shutil.rmtree(place, ignore_errors=True)
            if is_new:
                with suppress(OSError):  # not empty
                    out.rmdir()
        raise


def publish(built: Path, out: Path) -> None:
    """Move a finished model into `out`, the files without which no loader opens it last."""
    for written in [built, *built.rglob("*")]:
        sync(written)
    for entry in sorted(built.iterdir(), key=_is_needed):
        place = out / entry.name
        if place.is_dir():
            shutil.rmtree(place)
        entry.replace(place)
    sync(out)


def _is_needed(entry: Path) -> tuple[bool, bool]:
    """Loaders look for config.json, or for modules.json if config.json is in a folder below."""
    return entry.name == "config.json", entry.name == "modules.json"


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file that is complete or absent, whenever the machine stops."""
    unfinished = path.with_name(f"{path.name}.new")
    with named_in_errors(unfinished):
        write(unfinished)
    sync(unfinished)
    unfinished.replace(path)
    sync(path.parent)


def write_record(folder: Path, record: TrainingRecord) -> None:
    (folder / DATA_FILE).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def read_record(model: EmbeddingModel) -> TrainingRecord | None:
    """What a model was trained on; None if no training of ours wrote it down.

    Calibration alone writes no record, and a file of this name may be another program's.
    """
    checkpoint = model.checkpoint
    if has_own_calibration(checkpoint.folder):
        path = checkpoint.folder / DATA_FILE
    else:
        path = shipped_calibration(checkpoint.sha256, model.name).with_suffix(f".{DATA_FILE}")
    try:
        found = read_object(path)
    except CheckpointError:
        return None
    return found if _is_record(found) else None


def with_earlier_records(record: TrainingRecord | None) -> Iterator[TrainingRecord | None]:
    """A record and those of the trainings before it; None stands for an unknown training."""
    yield record
    if record is None:
        return
    earlier = [record["before"]] if "before" in record else []
    earlier += [part.get("record") for part in record.get("averaged", ())]
    for one in earlier:
        yield from with_earlier_records(one if _is_record(one) else None)


def _is_record(found: object) -> bool:
    sources = found.get("sources") if isinstance(found, Mapping) else None
    return isinstance(sources, Mapping) and all(
        isinstance(part, Mapping) and part.keys() >= _SOURCE_KEYS for part in sources.values()
    )
