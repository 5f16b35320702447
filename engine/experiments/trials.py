"""The folder of an experiment: its settings, every finished trial, and the result.

`settings.json` is written first: a run with other settings is refused. Each trial is a line of
`trials.jsonl`, so an interrupted run continues after the last whole line. `machines.jsonl` has a
line for each process that added trials. `result.json` depends on settings and figures alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from engine.checkpoint.json_files import read_object
from engine.errors import InvalidInput
from engine.platform.files import named_in_errors
from engine.platform.locks import writers_lock
from engine.training.model_folder import write_whole

SETTINGS_FILE = "settings.json"
TRIALS_FILE = "trials.jsonl"
RESULT_FILE = "result.json"
MACHINES_FILE = "machines.jsonl"
LOCK_FILE = ".lock"
METHODS = "methods"
"""The one setting that may change, and only grow: trials of other methods stay as they are."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One training run: a method at one rate from one seed."""

    method: str
    rate: float
    seed: int
    part: str  # "tuning" is scored on validation data, "test" on test data


ByDocument: TypeAlias = Mapping[str, Mapping[str, Sequence[Sequence[float]]]]
"""Each document's sum over its questions, and how many they are, by figure and corpus."""


class Findings(NamedTuple):
    """What a trial found, where it also knows its figures by document."""

    figures: Mapping[str, float]
    by_document: ByDocument


@dataclass(frozen=True, kw_only=True)
class Measured:
    figures: Mapping[str, float]
    seconds: float  # CPU time of the thread that trained
    by_document: ByDocument = field(default_factory=dict)

    def as_line(self) -> dict[str, Any]:
        told = asdict(self)
        if not self.by_document:
            del told["by_document"]
        return told


class TrialStore:
    def __init__(self, folder: Path, machine: Mapping[str, Any]) -> None:
        self.folder = folder
        self.measured: dict[Trial, Measured] = dict(read_trials(folder))
        self._machine: Mapping[str, Any] | None = machine  # None once it is written

    def add(self, trial: Trial, measured: Measured) -> None:
        if self._machine is not None:
            self._append(MACHINES_FILE, {"first_trial": len(self.measured), **self._machine})
            self._machine = None
        self._append(TRIALS_FILE, {**asdict(trial), **measured.as_line()})
        self.measured[trial] = measured

    def _append(self, name: str, document: Mapping[str, Any]) -> None:
        path = self.folder / name
        with named_in_errors(path), path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(document) + "\n")

    def write(self, name: str, document: Mapping[str, Any]) -> None:
        text = as_json(document)
        write_whole(self.folder / name, lambda path: path.write_text(text, encoding="utf-8"))


def as_json(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=1) + "\n"


@contextmanager
def open_store(
    folder: Path, settings: Mapping[str, Any], machine: Mapping[str, Any]
) -> Iterator[TrialStore]:
    """The store of a new experiment, or of one with these very settings that goes on."""
    _check_folder(folder, settings)
    folder.mkdir(parents=True, exist_ok=True)
    with writers_lock(folder / LOCK_FILE, str(folder)):
        text = as_json(settings)
        write_whole(folder / SETTINGS_FILE, lambda path: path.write_text(text, encoding="utf-8"))
        _drop_torn_line(folder / TRIALS_FILE)
        yield TrialStore(folder, machine)


def _check_folder(folder: Path, settings: Mapping[str, Any]) -> None:
    if not folder.exists() or all(path.name == LOCK_FILE for path in folder.iterdir()):
        return
    path = folder / SETTINGS_FILE
    if not path.is_file():
        raise InvalidInput(
            f"{folder} holds other files",
            code="folder_not_empty",
            param="out",
        )
    earlier = read_object(path)
    wanted = json.loads(as_json(settings))
    differing = sorted(
        key for key in {*earlier, *wanted} - {METHODS} if earlier.get(key) != wanted.get(key)
    )
    if not set(earlier[METHODS]) <= set(wanted[METHODS]):
        differing.append(METHODS)
    if differing:
        told = "; ".join(
            f"{key} was {earlier.get(key)!r} and is {wanted.get(key)!r}" for key in differing
        )
        raise InvalidInput(
            f"{folder} holds an experiment with other settings: {told}",
            code="other_settings",
            param="out",
        )


def read_trials(folder: Path) -> Iterator[tuple[Trial, Measured]]:
    path = folder / TRIALS_FILE
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8").splitlines():
        found = json.loads(line)
        told = {
            name: found.pop(name) for name in ("figures", "seconds", "by_document") if name in found
        }
        yield Trial(**found), Measured(**told)


def _drop_torn_line(path: Path) -> None:
    """A process that was killed may have left half a line."""
    content = path.read_bytes() if path.exists() else b""
    whole = content[: content.rfind(b"\n") + 1]
    if whole != content:
        write_whole(path, _writer(whole))


def _writer(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)
